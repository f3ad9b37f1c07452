"""What each operation answers: the workload of client/tests/it/operations.rs, and a random one beside a dictionary."""

import struct
import threading
import unittest

import fatbtree
from cluster import ClusterTest
from dictionary import agree


def number(n):
    return struct.pack("<Q", n)


class Operations(ClusterTest):
    def setUp(self):
        self.db = fatbtree.connect(self.file)
        self.addCleanup(self.db.close)
        for key, _ in self.db.scan():
            self.db.delete(key)

    def test_each_operation_answers_what_it_should(self):
        db = self.db
        self.assertIsNone(db.get(1))
        self.assertIs(db.insert(1, b"one"), True)
        self.assertIs(db.insert(1, b"another"), False)
        self.assertIs(db.update(1, b"two"), True)
        self.assertIs(db.update(2, b"two"), False)
        self.assertIs(db.compare_and_swap(1, b"one", b"three"), False)
        self.assertIs(db.compare_and_swap(1, b"two", bytearray(b"three")), True)
        self.assertEqual(db.get(1), b"three")
        self.assertIs(db.delete(1), True)
        self.assertIs(db.delete(1), False)

        self.assertEqual(db.put_many([(n * 2, number(n)) for n in range(3000)]), [])
        self.assertEqual(db.get_many([4, 5, 5998]), [number(2), None, number(2999)])
        for start, stop in [(0, 6000), (10, 11), (11, 12), (7, 7), (100, 4000)]:
            expected = [(key, number(key // 2)) for key in range(start, stop) if key % 2 == 0]
            self.assertEqual(list(db.scan(start, stop)), expected)
            self.assertEqual(list(db.scan(start, stop, backward=True)), expected[::-1])
        last = 2**64 - 1
        db.put(last, b"last")
        self.assertEqual(list(db.scan(last)), [(last, b"last")])
        self.assertEqual(list(db.scan(last, last)), [])
        stats = db.stats()
        self.assertEqual((stats["failed"], stats["unknown"]), (0, 0))
        self.assertGreaterEqual(stats["changes"], 3009)

    def test_a_random_workload_agrees_with_a_dictionary(self):
        def draw(chance, step):
            return chance.randrange(300), number(step) * chance.randrange(1, 9)

        def get_many(known, chance):
            keys = [chance.randrange(300) for _ in range(20)]
            self.assertEqual(db.get_many(keys), [known.get(key) for key in keys])

        db = self.db
        known = agree(self, db, 2000, draw, [get_many])
        self.assertEqual(list(db.scan()), sorted(known.items()))
        self.assertEqual(list(db.pairs()), sorted(known.items()))

    def test_threads_share_a_client(self):
        def count_up(thread):
            for n in range(50):
                self.db.put(n * 4 + thread, number(thread))
                while True:
                    before = self.db.get(10**9)
                    if before is None:
                        done = self.db.insert(10**9, number(1))
                    else:
                        after = number(struct.unpack("<Q", before)[0] + 1)
                        done = self.db.compare_and_swap(10**9, before, after)
                    if done:
                        break

        threads = [threading.Thread(target=count_up, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.db.get(10**9), number(200))
        self.assertEqual([value for _, value in self.db.scan(0, 200)], [number(key % 4) for key in range(200)])

    def test_queries_have_the_same_operations_except_two(self):
        with fatbtree.connect(self.file, protocol="query") as db:
            self.assertIsNone(db.get(1))
            db.put(1, b"one")
            self.assertIs(db.update(1, b"two"), True)
            self.assertIs(db.update(2, b"two"), False)
            self.assertEqual(db.get(1), b"two")
            self.assertEqual(db.put_many([(key, b"x") for key in range(10, 200)]), [])
            self.assertEqual([key for key, _ in db.scan(0, 151)], [1, *range(10, 151)])
            self.assertIs(db.delete(1), True)
            self.assertIs(db.delete(1), False)
            for refused in (lambda: db.insert(3, b"x"), lambda: db.compare_and_swap(3, b"x", b"y")):
                with self.assertRaises(fatbtree.UnsupportedError) as raised:
                    refused()
                self.assertIs(raised.exception.may_have_happened, False)


class Errors(ClusterTest):
    def test_each_error_says_whether_the_change_may_have_happened(self):
        db = fatbtree.connect(self.file)
        with self.assertRaises(fatbtree.FailedError) as raised:
            db.put(1, bytes(64 << 20))
        self.assertIs(raised.exception.may_have_happened, False)
        self.assertIsNone(db.get(1))
        # A limit within which nothing is done.
        with self.assertRaises(fatbtree.TimedOutError) as raised:
            db.with_time_limit(0).put(1, b"x")
        self.assertIs(raised.exception.may_have_happened, False)
        # One within which the change is begun: it may have happened, and a read finds out.
        unknown = 0
        for n in range(300):
            try:
                db.with_time_limit(n * 2e-6).put(1, number(n))
                self.assertEqual(db.get(1), number(n))
            except fatbtree.TimedOutError as error:
                unknown += error.may_have_happened
                self.assertIn("time limit", str(error))
        self.assertGreater(unknown, 0)
        db.close()
        db.close()
        with self.assertRaises(fatbtree.ClosedError) as raised:
            db.put(1, b"x")
        self.assertIs(raised.exception.may_have_happened, False)

    def test_arguments_that_cannot_be(self):
        with self.assertRaises(fatbtree.ConnectError) as raised:
            fatbtree.connect("no-such-file.toml")
        self.assertIn("no-such-file.toml", str(raised.exception))
        with self.assertRaises(fatbtree.ConnectError) as raised:
            fatbtree.connect(self.file, client="nobody")
        self.assertIn("host-0-2", str(raised.exception))
        with self.assertRaisesRegex(ValueError, '"rdma" or "query"'):
            fatbtree.connect(self.file, protocol="http")
        with self.assertRaises(ValueError):
            fatbtree.connect(self.file, patience=-1)
        with self.assertRaises(TypeError):
            fatbtree.connect(self.file, colour="blue")
        with fatbtree.connect(self.file) as db:
            for key in (-1, 2**64):
                calls = [
                    lambda: db.get(key),
                    lambda: db.get_many([1, key]),
                    lambda: db.put(key, b"x"),
                    lambda: db.insert(key, b"x"),
                    lambda: db.update(key, b"x"),
                    lambda: db.compare_and_swap(key, b"x", b"y"),
                    lambda: db.delete(key),
                    lambda: db.scan(key),
                ]
                for call in calls:
                    with self.assertRaises(fatbtree.OutOfRangeError) as raised:
                        call()
                    self.assertIs(raised.exception.may_have_happened, False)
                    self.assertIn(str(key), str(raised.exception))
            self.assertTrue(issubclass(fatbtree.OutOfRangeError, (fatbtree.Error, OverflowError)))
            # A bad key fails alone.
            failed = db.put_many([(1, b"one"), (2**64, b"x"), (2, b"two"), (-1, b"y")])
            self.assertEqual([key for key, _ in failed], [2**64, -1])
            self.assertTrue(all(isinstance(error, fatbtree.OutOfRangeError) for _, error in failed))
            self.assertEqual(db.get_many([1, 2]), [b"one", b"two"])
            self.assertEqual(list(db.scan(0, 2**64)), list(db.scan()))
            self.assertTrue(db.delete(1) and db.delete(2))
            with self.assertRaises(TypeError):
                db.put(1, "text")
        self.assertTrue(issubclass(fatbtree.TimedOutError, fatbtree.Error))
        self.assertIs(fatbtree.Error("made here").may_have_happened, False)


if __name__ == "__main__":
    unittest.main()
