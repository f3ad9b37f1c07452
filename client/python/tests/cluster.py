"""A cluster of processes, started by `fatbtree up`, with a client's host that has several seats."""

import os
import signal
import socket
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("FATBTREE", "fatbtree")


# Blocks of ports as in processes/tests/common/ports.rs: the first one of each claims it, and is kept until this process ends.
FIRST, BLOCK, BLOCKS = 10240, 128, 170
CLAIMED = []


def own_ports():
    """The first of 127 UDP and TCP ports in a row that no other test has, and nothing else."""
    for number in range(BLOCKS):
        first = FIRST + (os.getpid() + number) % BLOCKS * BLOCK
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind(("127.0.0.1", first))
            claim.listen()
            for port in range(first + 1, first + BLOCK):
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    with socket.socket(socket.AF_INET, kind) as found:
                        found.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        CLAIMED.append(claim)
        return first + 1
    raise OSError("no free ports")


def cluster_file(first):
    return f"""
[network]
kind = "single"
hosts = 4
[wires]
host = "127.0.0.1"
first_port = {first}
[p4runtime]
first_port = {first + 10}
[controller]
grpc = "127.0.0.1:{first + 12}"
[[memory_server]]
host = "host-0-0"
grpc = "127.0.0.1:{first + 13}"
[[memory_server]]
host = "host-0-1"
grpc = "127.0.0.1:{first + 14}"
[[client]]
host = "host-0-2"
[[host]]
name = "host-0-2"
wire = "udp:127.0.0.1:{first + 20}-{first + 35}"
"""


class ClusterTest(unittest.TestCase):
    """Tests with a cluster, which is begun once for all of them."""

    structure = "tree"
    # Keys of bytes with which memory servers are loaded; None: keys are numbers.
    names = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.file = os.path.join(cls.folder.name, "cluster.toml")
        with open(cls.file, "w", encoding="utf-8") as file:
            file.write(f'structure = "{cls.structure}"\n' + cluster_file(own_ports()))
        serve = ["--serve", "queries"] if cls.structure == "tree" else []
        cls.up = subprocess.Popen(
            [PROGRAM, "up", cls.file, *serve],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        cls.addClassCleanup(cls.stop)
        said = []
        for line in cls.up.stdout:
            said.append(line)
            if line.strip() == "ready":
                break
        else:
            raise RuntimeError("the cluster does not start: " + "".join(said))
        if cls.names is not None:
            cls.load_names()

    @classmethod
    def load_names(cls):
        path = os.path.join(cls.folder.name, "names.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in cls.names)
        load = [PROGRAM, "load", "--cluster", cls.file, "--keys", path, "--key-type", "bytes"]
        done = subprocess.run(load, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError("the keys are not loaded: " + done.stdout)

    @classmethod
    def stop(cls):
        cls.up.send_signal(signal.SIGTERM)
        cls.up.communicate(timeout=30)
