"""Transactions: all changes or none, again after a conflict, from threads and from tasks."""

import asyncio
import struct
import threading
import time
import unittest

import fatbtree
from cluster import ClusterTest
from fatbtree import aio

ACCOUNTS, EACH = 4, 100


def number(n):
    return struct.pack("<q", n)


def money(value):
    return struct.unpack("<q", value)[0]


class Transactions(ClusterTest):
    structure = "dtx"

    def setUp(self):
        self.db = fatbtree.connect(self.file)
        self.addCleanup(self.db.close)
        for account in range(ACCOUNTS):
            self.db.put(account, number(EACH))

    def check_sum(self):
        with self.db.begin() as tx:
            self.assertEqual(sum(map(money, tx.get_many(range(ACCOUNTS)))), ACCOUNTS * EACH)

    def test_steps(self):
        db = self.db
        with db.begin() as tx:
            tx.put(0, number(1))
            tx.put((3, 7), b"another table")
            self.assertIs(tx.insert(0, b"there already"), False)
            self.assertIs(tx.delete(1), True)
            self.assertEqual(tx.get_many([0, 1, (3, 7)]), [number(1), None, b"another table"])
            self.assertEqual(tx.get((3, 7), for_update=True), b"another table")
        self.assertEqual((db.get(0), db.get(1)), (number(1), None))
        with self.assertRaises(fatbtree.ClosedError):
            tx.get(0)

        with self.assertRaises(ZeroDivisionError), db.begin() as tx:
            tx.put(0, number(2))
            1 // 0
        self.assertEqual(db.get(0), number(1))
        tx = db.begin()
        tx.put(0, number(3))
        tx.abort()
        self.assertEqual(db.get(0), number(1))
        # A block may end its transaction itself.
        with db.begin() as tx:
            tx.put(0, number(3))
            tx.abort()
        with db.begin() as tx:
            tx.put(1, number(1))
            tx.commit()
        self.assertEqual(db.get(1), number(1))
        self.assertEqual(db.get(0), number(1))
        for wrong in (-1, 2**64, (0, 2**64)):
            with self.assertRaises(fatbtree.OutOfRangeError), db.begin() as tx:
                tx.get(wrong)
        for wrong in ("1", (1, 2, 3), None):
            with self.assertRaises(TypeError), db.begin() as tx:
                tx.get(wrong)

    def test_the_first_exception_is_raised(self):
        late = self.db.with_time_limit(0.05)

        def sleep(tx):
            time.sleep(0.1)
            1 // 0

        with self.assertRaises(ZeroDivisionError):
            late.transact(sleep)
        with self.assertRaises(ZeroDivisionError), late.begin() as tx:
            sleep(tx)

        async def main():
            async with await aio.connect(self.file, time_limit=0.05) as db:

                async def sleep(tx):
                    await asyncio.sleep(0.1)
                    1 // 0

                with self.assertRaises(ZeroDivisionError):
                    await db.transact(sleep)
                with self.assertRaises(ZeroDivisionError):
                    async with await db.begin() as tx:
                        await sleep(tx)

        self.db.close()
        asyncio.run(main())

    def test_a_cancelled_task_holds_no_lock(self):
        async def main():
            async with await aio.connect(self.file) as db:
                locked = asyncio.Event()

                async def work(tx):
                    await tx.get(0, for_update=True)
                    locked.set()
                    await asyncio.sleep(60)

                task = asyncio.create_task(db.transact(work))
                await locked.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                async with await db.begin() as tx:
                    self.assertEqual(await tx.get(0, for_update=True), number(EACH))

        self.db.close()
        asyncio.run(main())

    def test_each_method_is_documented(self):
        for kind in (fatbtree.Client, fatbtree.Scan, fatbtree.BytesClient, fatbtree.BytesScan, fatbtree.Transaction):
            for name in (None, *(name for name in vars(kind) if not name.startswith("_"))):
                with self.subTest(kind=kind, name=name):
                    self.assertTrue((getattr(kind, name) if name else kind).__doc__)

    def test_a_conflict_is_an_exception(self):
        one = self.db.begin()
        one.get(0, for_update=True)
        other = self.db.begin()
        with self.assertRaises(fatbtree.ConflictError) as raised:
            other.get(0, for_update=True)
        self.assertIs(raised.exception.may_have_happened, False)
        self.assertIsInstance(raised.exception, fatbtree.FailedError)
        other.abort()
        one.put(0, number(EACH))
        one.commit()

    def test_threads_move_money(self):
        def transfer(tx, source, target):
            a, b = map(money, tx.get_many([source, target], for_update=True))
            tx.put(source, number(a - 1))
            tx.put(target, number(b + 1))
            return a - 1

        def work(first):
            for step in range(50):
                source, target = (first + step) % ACCOUNTS, (first + 2 * step + 1) % ACCOUNTS
                if source != target:
                    moved.append(self.db.transact(lambda tx: transfer(tx, source, target)))

        moved = []
        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertGreater(len(moved), 100)
        self.check_sum()
        with self.assertRaises(ZeroDivisionError):
            self.db.transact(lambda tx: tx.put(0, b"") or 1 // 0)
        self.check_sum()

    def test_tasks_move_money(self):
        async def main():
            async with await aio.connect(self.file) as db:

                async def transfer(tx):
                    a, b = map(money, await tx.get_many([0, 1], for_update=True))
                    await tx.put(0, number(a - 1))
                    await tx.put(1, number(b + 1))

                await asyncio.gather(*(db.transact(transfer) for _ in range(20)))
                async with await db.begin() as tx:
                    self.assertEqual(await tx.get(0), number(EACH - 20))
                with self.assertRaises(ZeroDivisionError):
                    async with await db.begin() as tx:
                        await tx.put(0, b"")
                        1 // 0
                self.assertEqual(await db.get(1), number(EACH + 20))

        self.db.close()
        asyncio.run(main())
        self.db = fatbtree.connect(self.file)
        self.addCleanup(self.db.close)
        self.check_sum()


class Trees(ClusterTest):
    def test_a_tree_has_none(self):
        with fatbtree.connect(self.file) as db:
            with self.assertRaisesRegex(fatbtree.UnsupportedError, "tree"):
                db.begin()
            with self.assertRaises(fatbtree.UnsupportedError):
                db.transact(lambda tx: None)


if __name__ == "__main__":
    unittest.main()
