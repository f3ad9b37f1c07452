"""The same operations over asyncio, many at once, and cancelled ones."""

import asyncio
import random
import unittest

import fatbtree
from cluster import ClusterTest
from fatbtree import aio
from test_operations import number


class Aio(ClusterTest):
    def test_each_operation_answers_what_it_should(self):
        async def run():
            async with await aio.connect(self.file) as db:
                for key in [key async for key, _ in db.scan(0, 10**6)]:
                    await db.delete(key)
                self.assertIsNone(await db.get(1))
                self.assertIs(await db.insert(1, b"one"), True)
                self.assertIs(await db.insert(1, b"another"), False)
                self.assertIs(await db.update(1, b"two"), True)
                self.assertIs(await db.update(2, b"two"), False)
                self.assertIs(await db.compare_and_swap(1, b"one", b"three"), False)
                self.assertIs(await db.compare_and_swap(1, b"two", b"three"), True)
                self.assertEqual(await db.get(1), b"three")
                self.assertIsNone(await db.put(1, b"three"))
                with self.assertRaises(fatbtree.OutOfRangeError):
                    await db.get(2**64)
                self.assertIs(await db.delete(1), True)
                self.assertIs(await db.delete(1), False)

                self.assertEqual(await db.put_many([(n * 2, number(n)) for n in range(3000)]), [])
                self.assertEqual(await db.get_many([4, 5, 5998]), [number(2), None, number(2999)])
                for start, stop in [(0, 6000), (10, 11), (11, 12), (7, 7), (100, 4000)]:
                    found = [pair async for pair in db.scan(start, stop)]
                    expected = [(key, number(key // 2)) for key in range(start, stop) if key % 2 == 0]
                    self.assertEqual(found, expected)
                self.assertEqual([key async for key, _ in db.pairs()], [n * 2 for n in range(3000)])
                with self.assertRaises(fatbtree.FailedError) as raised:
                    await db.put(1, bytes(64 << 20))
                self.assertIs(raised.exception.may_have_happened, False)
                with self.assertRaises(fatbtree.TimedOutError):
                    await db.with_time_limit(0).put(1, b"x")
            with self.assertRaises(fatbtree.ClosedError):
                await db.get(1)

        asyncio.run(run())

    def test_many_tasks_work_at_once(self):
        async def task(db, base):
            chance, known = random.Random(base), {}
            for step in range(60):
                key = base + chance.randrange(10)
                if chance.randrange(2):
                    await db.put(key, number(step))
                    known[key] = number(step)
                else:
                    self.assertEqual(await db.get(key), known.get(key))
            return known

        async def run():
            async with await aio.connect(self.file) as db:
                parts = await asyncio.gather(*(task(db, 10**6 + 10 * n) for n in range(32)))
                known = {key: value for part in parts for key, value in part.items()}
                found = [pair async for pair in db.scan(10**6, 2 * 10**6)]
                self.assertEqual(found, sorted(known.items()))

        asyncio.run(run())

    def test_cancelled_tasks_leave_the_tree_right(self):
        async def change(db, key, value):
            await db.put(key, value)
            await db.delete(key)
            await db.put(key, value)

        async def run():
            async with await aio.connect(self.file) as db:
                for n in range(60):
                    tasks = [asyncio.create_task(change(db, key, number(n))) for key in range(8)]
                    await asyncio.sleep(n % 20 / 10_000)
                    for task in tasks:
                        task.cancel()
                    ended = await asyncio.gather(*tasks, return_exceptions=True)
                    self.assertTrue(all(end is None or isinstance(end, asyncio.CancelledError) for end in ended))
                # A lock that stayed would hold this up.
                quick = db.with_time_limit(10)
                for key in range(8):
                    await quick.put(key, number(key))
                self.assertEqual(await db.get_many(range(8)), [number(key) for key in range(8)])
                self.assertEqual(db.stats()["failed"], 0)
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.gather(*(db.get(1) for _ in range(20_000))), 0.001)
                self.assertEqual(await db.get(1), number(1))

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
