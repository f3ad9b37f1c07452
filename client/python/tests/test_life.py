"""The life of a process: signals, forks, and the end of the interpreter beside threads in a call."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import fatbtree
from cluster import ClusterTest, cluster_file, own_ports
from fatbtree import aio


def script(text, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def wait_for(child, seconds=20):
    """The exit code of a fork."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class Signals(unittest.TestCase):
    def test_ctrl_c_ends_a_wait_at_once(self):
        first = own_ports()
        # A memory server that is frozen: it accepts, and never answers.
        with socket.socket() as frozen, tempfile.TemporaryDirectory() as folder:
            frozen.bind(("127.0.0.1", first + 13))
            frozen.listen()
            path = os.path.join(folder, "cluster.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(cluster_file(first))
            # Where tests run in the background, processes begin with a SIGINT that is ignored.
            text = (
                "import signal, sys, fatbtree; signal.signal(signal.SIGINT, signal.default_int_handler); "
                "print('begins', flush=True); fatbtree.connect(sys.argv[1], patience=60)"
            )
            child = script(text, path)
            child.stdout.readline()
            time.sleep(0.5)
            begun = time.monotonic()
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=30)
            self.assertIn("KeyboardInterrupt", errors)
            self.assertLess(time.monotonic() - begun, 5)


class Processes(ClusterTest):
    def test_a_fork_that_uses_the_parents_client_is_told_so(self):
        with fatbtree.connect(self.file) as db:
            db.put(1, b"one")
            calls = [
                lambda: db.get(1),
                lambda: db.put(1, b"two"),
                lambda: db.with_time_limit(1).get(1),
                lambda: list(db.scan()),
            ]
            for call in calls:
                child = os.fork()
                if child == 0:
                    try:
                        call()
                    except fatbtree.ClosedError as error:
                        os._exit(0 if "fork" in str(error) and not error.may_have_happened else 1)
                    except BaseException:
                        os._exit(2)
                    os._exit(3)
                self.assertEqual(wait_for(child), 0)
            child = os.fork()
            if child == 0:
                # Closing waits for nothing, and a client of its own works.
                db.close()
                with fatbtree.connect(self.file) as own:
                    os._exit(0 if own.get(1) == b"one" else 1)
            self.assertEqual(wait_for(child), 0)
            self.assertEqual(db.get(1), b"one")

    def test_an_interpreter_ends_beside_threads_in_a_call(self):
        text = """
import sys, threading, time, fatbtree
db = fatbtree.connect(sys.argv[1])
def ask():
    while True:
        db.get_many(range(100))
for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
time.sleep(0.3)
"""
        for _ in range(5):
            child = script(text, self.file)
            _, errors = child.communicate(timeout=60)
            self.assertEqual((child.returncode, errors), (0, ""))

    def test_an_interpreter_ends_beside_a_loop_in_a_call(self):
        text = """
import asyncio, sys, threading, time
from fatbtree import aio
async def ask():
    db = await aio.connect(sys.argv[1])
    while True:
        await asyncio.gather(*(db.get(key) for key in range(100)))
threading.Thread(target=lambda: asyncio.run(ask()), daemon=True).start()
time.sleep(1)
"""
        for _ in range(5):
            child = script(text, self.file)
            _, errors = child.communicate(timeout=60)
            self.assertEqual((child.returncode, errors), (0, ""))

    def test_scripts_that_never_close_do_not_lock_out_the_next(self):
        text = "import os, sys, fatbtree; db = fatbtree.connect(sys.argv[1], patience=30); db.put(1, b'x'); os._exit(7)"
        for _ in range(6):
            child = script(text, self.file)
            _, errors = child.communicate(timeout=60)
            self.assertEqual((child.returncode, errors), (7, ""))


class HashTable(ClusterTest):
    structure = "hash"

    def test_what_a_hash_table_does_not_have_is_unsupported(self):
        with fatbtree.connect(self.file) as db:
            db.put(1, b"one")
            with self.assertRaises(fatbtree.UnsupportedError) as raised:
                list(db.scan())
            self.assertIs(raised.exception.may_have_happened, False)
            with self.assertRaisesRegex(fatbtree.FailedError, "keys of this hash table are numbers"):
                db.bytes().get("a")
            self.assertIs(db.compare_and_swap(1, b"none", b"two"), False)
            self.assertIs(db.compare_and_swap(1, b"one", b"two"), True)
            self.assertEqual(db.get(1), b"two")

    def test_all_pairs_come_once_in_no_order(self):
        with fatbtree.connect(self.file) as db:
            pairs = {key: str(key).encode() for key in range(3000)}
            self.assertEqual(db.put_many(list(pairs.items())), [])
            found = list(db.pairs())
            self.assertEqual(len(found), len(pairs))
            self.assertEqual(dict(found), pairs)


class HashTableOfNames(ClusterTest):
    structure = "hash"
    names = ["a", "b"]

    def test_all_pairs_come_once_in_no_order(self):
        with fatbtree.connect(self.file).bytes() as db:
            for key, _ in db.pairs():
                db.delete(key)
            pairs = {f"user:{n}".encode(): str(n).encode() for n in range(500)}
            for key, value in pairs.items():
                db.put(key, value)
            found = list(db.pairs())
            self.assertEqual((len(found), dict(found)), (len(pairs), pairs))
            with self.assertRaises(fatbtree.UnsupportedError):
                list(db.scan())

        async def found_by_coroutines():
            async with await aio.connect(self.file) as db:
                return [pair async for pair in db.bytes().pairs()]

        found = asyncio.run(found_by_coroutines())
        self.assertEqual((len(found), dict(found)), (len(pairs), pairs))


if __name__ == "__main__":
    unittest.main()
