"""Trees whose keys are bytes: what each operation answers, tuples as keys, and what is refused."""

import asyncio
import itertools
import json
import random
import subprocess
import unittest
from datetime import date, datetime, timedelta, timezone

import fatbtree
from cluster import PROGRAM, ClusterTest
from dictionary import agree
from fatbtree import aio

UTC = timezone.utc


class BytesTest(ClusterTest):
    # A border between the two servers follows from them: text that begins with "m", and tuples, lie on different ones.
    names = ["a", "b", "m", "z"]

    def setUp(self):
        self.db = fatbtree.connect(self.file).bytes()
        self.addCleanup(self.db.close)
        for key, _ in self.db.scan():
            self.db.delete(key)


class Operations(BytesTest):
    def test_each_operation_answers_what_it_should(self):
        db = self.db
        self.assertIsNone(db.get("user:4711"))
        self.assertIs(db.insert("user:4711", b"Ada"), True)
        self.assertIs(db.insert(b"user:4711", b"another"), False)
        self.assertIs(db.update(bytearray(b"user:4711"), b"Grace"), True)
        self.assertIs(db.update("user:4712", b"Grace"), False)
        self.assertIs(db.compare_and_swap("user:4711", b"Ada", b"Edsger"), False)
        self.assertIs(db.compare_and_swap("user:4711", b"Grace", bytearray(b"Edsger")), True)
        self.assertEqual(db.get(b"user:4711"), b"Edsger")
        self.assertIs(db.delete("user:4711"), True)
        self.assertIs(db.delete("user:4711"), False)
        self.assertIsNone(db.put("größe", b"str is its UTF-8"))
        self.assertEqual(db.get("größe".encode()), b"str is its UTF-8")
        self.assertIs(db.delete("größe"), True)

        failed = db.put_many([("many:1", b"1"), (b"many:2", b"2"), (("many", 3), b"3"), (bytes(4097), b"4")])
        self.assertEqual([(key, type(error)) for key, error in failed], [(bytes(4097), ValueError)])
        self.assertEqual(db.get_many([b"many:2", "many:3", ("many", 3), "many:1"]), [b"2", None, b"3", b"1"])
        self.assertEqual([db.delete(key) for key in ("many:1", "many:2", ("many", 3))], [True] * 3)

        known = {}
        for n in range(600):
            key = f"{'am'[n % 2]}.example/page/{n}".encode()
            known[key] = value = str(n).encode()
            db.put(key, value)
        for key in (b"", b"\0", b"\0\0", b"a\0", b"a", b"\xff\xff", bytes(4096)):
            known[key] = b"edge"
            db.put(key, b"edge")
        pairs = sorted(known.items())
        self.assertEqual(list(db.pairs()), pairs)
        self.assertEqual(list(db.scan()), pairs)
        self.assertEqual(list(db.scan(backward=True)), pairs[::-1])
        for start, stop in [("a", "b"), ("a.example/page/3", "m.example/page/5"), (b"\xff", None), (None, b"\0"), ("z", "a")]:
            low, high = [end.encode() if isinstance(end, str) else end for end in (start, stop)]
            expected = [
                pair for pair in pairs if (low is None or low <= pair[0]) and (high is None or pair[0] < high)
            ]
            self.assertEqual(list(db.scan(start, stop)), expected)
            self.assertEqual(list(db.scan(start, stop, backward=True)), expected[::-1])
        for prefix in ("", "a", "m.example/page/1", b"\0", b"\xff", "none"):
            begin = prefix.encode() if isinstance(prefix, str) else prefix
            expected = [pair for pair in pairs if pair[0].startswith(begin)]
            self.assertEqual(list(db.scan_prefix(prefix)), expected)
            self.assertEqual(list(db.scan_prefix(prefix, backward=True)), expected[::-1])
        stats = db.stats()
        self.assertEqual((stats["failed"], stats["unknown"]), (0, 0))
        self.assertGreaterEqual(stats["changes"], 600)

    def test_a_random_workload_agrees_with_a_dictionary(self):
        def draw(chance, step):
            key = bytes(chance.choice(b"\0am\xff") for _ in range(chance.randrange(12)))
            return key, str(step).encode() * chance.randrange(1, 9)

        db = self.db
        known = agree(self, db, 1500, draw)
        self.assertEqual(list(db.scan()), sorted(known.items()))

    def test_clients_over_one_connection_have_their_own_time_and_one_end(self):
        numbers = fatbtree.connect(self.file)
        db = numbers.bytes()
        with self.assertRaises(fatbtree.TimedOutError) as raised:
            db.with_time_limit(0).put("a", b"x")
        self.assertIs(raised.exception.may_have_happened, False)
        with db as entered:
            self.assertIs(entered, db)
        with self.assertRaises(fatbtree.ClosedError):
            db.get("a")
        with self.assertRaises(fatbtree.ClosedError):
            numbers.bytes().get("a")


class Tuples(BytesTest):
    def test_orders_of_a_user_are_a_range(self):
        db = self.db
        begin = datetime(2026, 11, 30, tzinfo=UTC)
        users = [-300, -1, 0, 9, 10, 256, 4711, 2**63, 2**64 - 1, 2**100]
        times = [begin + timedelta(days=n) for n in (3, -1, 0, 7)]
        for user, at in itertools.product(users, times):
            db.put(("order", user, at), f"{user} {at}".encode())
        db.put(("order\0", 9, begin), b"another kind")
        db.put("order", b"no tuple")
        for user in users:
            found = [(fatbtree.decode_key(key), value) for key, value in db.scan_prefix(("order", user))]
            expected = [(("order", user, at), f"{user} {at}".encode()) for at in sorted(times)]
            self.assertEqual(found, expected)
            found = [fatbtree.decode_key(key)[2] for key, _ in db.scan_prefix(("order", user), backward=True)]
            self.assertEqual(found, sorted(times, reverse=True))
            found = db.scan(("order", user, begin), ("order", user, begin + timedelta(days=7)))
            self.assertEqual([fatbtree.decode_key(key)[2] for key, _ in found], [begin, begin + timedelta(days=3)])
            self.assertEqual(db.get(("order", user, begin)), f"{user} {begin}".encode())
        found = [fatbtree.decode_key(key)[1] for key, _ in db.scan_prefix(("order",))]
        self.assertEqual(found, sorted(users * 4))
        self.assertIs(db.delete(("order", 9, begin)), True)
        self.assertIsNone(db.get(("order", 9, begin)))


class Encoding(unittest.TestCase):
    def test_keys_have_the_bytes_that_the_library_has(self):
        # From client/tests/tuples.rs.
        tuples = {
            "026f726465720016126713fe14272600016100ff6200": ("order", 4711, -1, 0, True, False, None, b"a\0b"),
            "1cffffffffffffffff0c7fffffffffffffff": (2**64 - 1, -(2**63)),
            "1d090100000000000000000bf6feffffffffffffffff": (2**64, -(2**64)),
            "4080000123456789ab407fffffffffffffff": (
                datetime.fromtimestamp(0, UTC) + timedelta(microseconds=0x0123456789AB),
                datetime.fromtimestamp(0, UTC) - timedelta(microseconds=1),
            ),
            "": (),
        }
        for key, elements in tuples.items():
            self.assertEqual(fatbtree.encode_key(elements).hex(), key)
            self.assertEqual(fatbtree.decode_key(bytes.fromhex(key)), elements)

    def test_keys_are_in_the_order_of_tuples_and_read_back(self):
        east = timezone(timedelta(hours=5))
        # Each kind in its order, and the kinds in theirs.
        kinds = [
            [None],
            [b"", b"\0", b"\0\xff", b"a", b"a\0", b"ab", b"\xff"],
            ["", "\0", "a", "a\0", "ab", "b", "ÿ", "\U0010ffff"],
            [-(2**127), -(2**64), -(2**64) + 1, -257, -256, -255, -1, 0, 1, 255, 256, 2**64 - 1, 2**64, 2**127 - 1],
            [False, True],
            [
                datetime.min.replace(tzinfo=UTC),
                datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
                datetime(2026, 11, 30, 6, tzinfo=east),
                datetime(2026, 11, 30, 2, tzinfo=UTC),
                datetime.max.replace(tzinfo=UTC),
            ],
        ]
        elements = [element for kind in kinds for element in kind]
        tuples = [()] + [(one, *more) for one in elements for more in [(), *((other,) for other in elements)]]
        keys = [fatbtree.encode_key(elements) for elements in tuples]
        self.assertEqual(keys, sorted(keys))
        self.assertEqual(len(set(keys)), len(keys))
        for key, elements in zip(keys, tuples):
            found = fatbtree.decode_key(key)
            self.assertEqual(found, elements)
            # True is 1 for Python, and another key here.
            self.assertEqual([type(one) for one in found], [type(one) for one in elements])
        at = fatbtree.decode_key(fatbtree.encode_key((datetime(2026, 11, 30, 6, tzinfo=east),)))[0]
        self.assertEqual(at.utcoffset(), timedelta(0))

    def test_what_is_no_tuple_is_refused(self):
        cases = [
            (b"user:4711", "byte 0: expected the code of an element, found 0x75"),
            (b"\x05" * 100_000, "byte 0: expected the code of an element, found 0x05"),
            (b"\x02a", "byte 0: the key ends within"),
            (b"\x02\xff\0", "UTF-8"),
            (b"\x16\0\x01", "leading zeros"),
            (b"\x40" + b"\xff" * 8, "datetime does not reach"),
        ]
        for key, expected in cases:
            with self.assertRaisesRegex(ValueError, expected):
                fatbtree.decode_key(key)
        chance = random.Random(7)
        for _ in range(5000):
            key = bytes(chance.choice(b"\0\1\2\x0b\x13\x14\x16\x1c\x1d\x26\x40a\xff") for _ in range(chance.randrange(12)))
            try:
                self.assertEqual(fatbtree.encode_key(fatbtree.decode_key(key)), key)
            except ValueError:
                pass
        with self.assertRaises(TypeError):
            fatbtree.decode_key("text")
        with self.assertRaises(TypeError):
            fatbtree.encode_key(["a", 1])


class Errors(BytesTest):
    def calls(self, key):
        db = self.db
        return [
            lambda: db.get(key),
            lambda: db.put(key, b"x"),
            lambda: db.insert(key, b"x"),
            lambda: db.update(key, b"x"),
            lambda: db.compare_and_swap(key, b"x", b"y"),
            lambda: db.delete(key),
            lambda: db.scan(key),
            lambda: db.scan("a", key),
            lambda: db.scan_prefix(key),
        ]

    def test_keys_that_cannot_be(self):
        of_type = [
            (7, "expected a key of type bytes, str or tuple, found int; integers are keys of the client that connect gives"),
            (7.5, "found float$"),
            (["a"], "found list$"),
            (("a", 1.5), "expected None, bool, int, str, bytes or datetime for element 1 of the key, found float"),
            ((("a",),), "for element 0 of the key, found tuple"),
            ((date(2026, 11, 30),), "for element 0 of the key, found date"),
        ]
        of_value = [
            ("x" * 4097, "expected a key of up to 4096 bytes, found one of 4097"),
            (("x" * 4096, 1), "expected a key of up to 4096 bytes, found one of 4100"),
            (("a", 2**127), "from -2\\*\\*127 to 2\\*\\*127 - 1 for element 1 of the key, found one of 128 bits"),
            ((datetime(2026, 11, 30),), "a datetime with a time zone for element 0 of the key"),
            ("\ud800", "surrogates"),
        ]
        for error, cases in [(TypeError, of_type), (ValueError, of_value)]:
            for key, expected in cases:
                for call in self.calls(key):
                    with self.assertRaisesRegex(error, expected):
                        call()
        self.assertEqual(list(self.db.pairs()), [])
        for call in self.calls(None)[:6]:
            with self.assertRaisesRegex(TypeError, "found NoneType"):
                call()
        with self.assertRaises(TypeError):
            self.db.put("a", "text")
        # The longest keys.
        for key in ("x" * 4096, ("x" * 4091, 1)):
            self.db.put(key, b"longest")
            self.assertEqual(self.db.get(key), b"longest")

    def test_trees_of_the_other_kind_are_refused_by_name(self):
        with fatbtree.connect(self.file) as numbers:
            for call in (
                lambda: numbers.get(7),
                lambda: numbers.put(7, b"x"),
                lambda: numbers.put_many([(7, b"x")])[0][1],
                lambda: next(numbers.scan()),
            ):
                with self.assertRaisesRegex(fatbtree.FailedError, "keys of this tree are bytes") as raised:
                    error = call()
                    if isinstance(error, Exception):
                        raise error
                self.assertIs(raised.exception.may_have_happened, False)

    def test_queries_have_keys_of_bytes_too(self):
        with fatbtree.connect(self.file, protocol="query").bytes() as db:
            self.assertIsNone(db.get("queried:2"))
            db.put("queried:2", b"Ada")
            db.put(b"queried:1", b"Grace")
            self.assertTrue(db.update("queried:2", b"Edsger"))
            pairs = [(b"queried:1", b"Grace"), (b"queried:2", b"Edsger")]
            self.assertEqual(list(db.scan_prefix("queried:")), pairs)
            for call in (lambda: db.insert("queried:3", b""), lambda: db.compare_and_swap("queried:1", b"", b"x")):
                with self.assertRaises(fatbtree.UnsupportedError):
                    call()
            self.assertEqual([db.delete(key) for key, _ in pairs], [True, True])
            self.assertFalse(db.delete("queried:1"))


class Numbers(ClusterTest):
    def test_bytes_are_refused_by_name_where_keys_are_numbers(self):
        with fatbtree.connect(self.file).bytes() as db:
            for call in (lambda: db.get("a"), lambda: db.put(("a", 1), b"x"), lambda: next(db.scan_prefix("a"))):
                with self.assertRaisesRegex(fatbtree.FailedError, "keys of this tree are numbers") as raised:
                    call()
                self.assertIs(raised.exception.may_have_happened, False)


    def test_keys_of_bytes_are_for_the_other_client(self):
        with fatbtree.connect(self.file) as db:
            for key in ("a", b"a", bytearray(b"a"), ("a", 1)):
                for call in (lambda: db.get(key), lambda: db.put_many([(key, b"x")]), lambda: db.scan(0, key)):
                    with self.assertRaisesRegex(TypeError, "type int, found .*; keys of bytes are for the client that bytes"):
                        call()
            with self.assertRaisesRegex(TypeError, "expected a key of type int, found float$"):
                db.get(1.5)


class Aio(BytesTest):
    def test_each_operation_answers_what_it_should(self):
        async def run():
            async with (await aio.connect(self.file)).bytes() as db:
                self.assertIsNone(await db.get("user:4711"))
                self.assertIs(await db.insert("user:4711", b"Ada"), True)
                self.assertIs(await db.insert(b"user:4711", b"another"), False)
                self.assertIs(await db.update("user:4711", b"Grace"), True)
                self.assertIs(await db.update("user:4712", b"Grace"), False)
                self.assertIs(await db.compare_and_swap("user:4711", b"Ada", b"Edsger"), False)
                self.assertIs(await db.compare_and_swap("user:4711", b"Grace", b"Edsger"), True)
                self.assertEqual(await db.get("user:4711"), b"Edsger")
                self.assertIs(await db.delete("user:4711"), True)
                self.assertIs(await db.delete("user:4711"), False)

                known = {("order", user, n): f"{user} {n}".encode() for user in range(8) for n in range(100)}
                some, others = dict(list(known.items())[:300]), dict(list(known.items())[300:])
                puts = [db.put(key, value) for key, value in some.items()]
                self.assertEqual(await asyncio.gather(*puts), [None] * 300)
                self.assertEqual(await db.put_many(list(others.items())), [])
                self.assertEqual(await db.get_many(list(known)), list(known.values()))
                self.assertEqual(await db.get(("order", 7, 99)), b"7 99")
                for backward in (False, True):
                    found = [pair async for pair in db.scan_prefix(("order", 5), backward=backward)]
                    found = [(fatbtree.decode_key(key), value) for key, value in found]
                    expected = [(key, value) for key, value in sorted(known.items()) if key[1] == 5]
                    self.assertEqual(found, expected[::-1] if backward else expected)
                    found = [value async for _, value in db.scan(("order", 1), ("order", 3), backward)]
                    expected = [value for key, value in sorted(known.items()) if 1 <= key[1] < 3]
                    self.assertEqual(found, expected[::-1] if backward else expected)
                found = [value async for _, value in db.pairs()]
                self.assertEqual(found, [value for _, value in sorted(known.items())])
                self.assertEqual([key async for key, _ in db.scan_prefix("user:")], [])
                with self.assertRaisesRegex(ValueError, "4096 bytes"):
                    await db.get("x" * 4097)
                with self.assertRaisesRegex(TypeError, "found int"):
                    await db.get(7)
                with self.assertRaises(fatbtree.TimedOutError):
                    await db.with_time_limit(0).put("a", b"x")
                self.assertEqual(db.stats()["unknown"], 0)
            with self.assertRaises(fatbtree.ClosedError):
                await db.get("a")

        asyncio.run(run())


class Programs(BytesTest):
    def test_the_command_line_reads_what_python_writes(self):
        self.db.put("user:4711", b"Ada")
        self.db.put(("user", 4711), b"Grace")
        words = [PROGRAM, "scan", "--bytes", "--cluster", self.file, "--json"]
        said = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
        found = [json.loads(line) for line in said.splitlines()]
        key = fatbtree.encode_key(("user", 4711))
        self.assertEqual([pair["key"].encode() for pair in found], [key, b"user:4711"])
        self.assertEqual([pair["value"] for pair in found], ["Grace", "Ada"])
        words = [PROGRAM, "get", f"0x{key.hex()}", "--bytes", "--cluster", self.file]
        self.assertEqual(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout, b"Grace")


if __name__ == "__main__":
    unittest.main()
