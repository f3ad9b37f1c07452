#!/usr/bin/env python3
"""Test vectors of the RoCEv2 invariant CRC, made by scapy's RoCE layer: an implementation independent of ours.

    pip install scapy
    scripts/icrc_vectors.py > fabric/wire/tests/data/scapy_icrc.txt          # write the vectors
    scripts/icrc_vectors.py --check fabric/wire/tests/data/scapy_icrc.txt    # regenerate and compare; exit 1 on a difference

One frame per line: a name, then the whole Ethernet frame in hexadecimal. The frames are a pure function of this file.
"""

import random
import struct
import sys

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw


def reth(va, rkey, length):
    return struct.pack(">QII", va, rkey, length)


def aeth(syndrome, msn):
    return bytes([syndrome]) + msn.to_bytes(3, "big")


def atomic(va, rkey, swap, compare):
    return struct.pack(">QIQQ", va, rkey, swap, compare)


def frames():
    rng = random.Random(4791)
    blob = rng.randbytes
    yield "read_request", 0x0C, reth(0x0001000000000040, 0x12345678, 1024)
    yield "index_read_request", 0x0C, reth(0xFEDCBA9876543210, 0, 512)
    for size in (0, 1, 2, 3, 4, 5, 17, 64, 255, 256, 1000, 1024, 4096):
        yield f"read_response_only_{size}", 0x10, aeth(0x1F, size + 1) + blob(size)
    yield "read_response_first", 0x0D, aeth(0x1F, 9) + blob(1024)
    yield "read_response_middle", 0x0E, blob(1024)
    yield "read_response_last", 0x0F, aeth(0x1F, 9) + blob(77)
    yield "write_first", 0x06, reth(0x7F0000001000, 0xA1B2C3D4, 2100) + blob(1024)
    yield "write_middle", 0x07, blob(1024)
    yield "write_last", 0x08, blob(52)
    yield "write_only", 0x0A, reth(0x7F0000001000, 0xA1B2C3D4, 17) + blob(17)
    yield "write_only_immediate", 0x0B, reth(0x7F0000001000, 0xA1B2C3D4, 8) + blob(4) + blob(8)
    yield "acknowledge", 0x11, aeth(0x1F, 0xFFFFFF)
    yield "nak_remote_access", 0x11, aeth(0x62, 3)
    yield "compare_swap", 0x13, atomic(0x0002000000000008, 0x55AA55AA, 1, 0)
    yield "fetch_add", 0x14, atomic(0x0002000000000010, 0x55AA55AA, 1 << 63, 0)
    yield "atomic_acknowledge", 0x12, aeth(0x1F, 4) + blob(8)
    yield "send_only", 0x04, blob(100)


def build():
    rng = random.Random(4792)
    for name, opcode, body in frames():
        # Bytes after the BTH are padded to a multiple of four; headers already are one.
        pad = -len(body) % 4
        packet = (
            Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02", type=0x0800)
            / IP(
                src=f"10.{rng.randrange(256)}.0.1",
                dst=f"10.0.{rng.randrange(256)}.2",
                id=rng.randrange(65536),
                tos=rng.choice([0, 2, 0x68]),
                ttl=rng.choice([1, 63, 64, 255]),
                flags="DF",
            )
            / UDP(sport=rng.randrange(0xC000, 0x10000), dport=4791, chksum=0)
            / BTH(
                opcode=opcode,
                padcount=pad,
                dqpn=rng.randrange(1 << 24),
                psn=rng.randrange(1 << 24),
                ackreq=rng.randrange(2),
                becn=rng.randrange(2),
            )
        )
        # scapy knows the BTH only, and takes an AETH apart by itself: everything after the BTH goes in raw.
        frame = bytes(packet / Raw(body + bytes(pad)))
        yield name, frame.hex()


def main():
    lines = [f"{name} {frame}\n" for name, frame in build()]
    if len(sys.argv) == 1:
        sys.stdout.writelines(lines)
        return 0
    if len(sys.argv) != 3 or sys.argv[1] != "--check":
        print(__doc__, file=sys.stderr)
        return 2
    path = sys.argv[2]
    with open(path, encoding="ascii") as file:
        stored = file.readlines()
    if stored == lines:
        print(f"{path}: {len(lines)} frames, the same as scapy makes now")
        return 0
    for number, (old, new) in enumerate(zip(stored, lines), 1):
        if old != new:
            print(f"{path}:{number}: expected {new.split()[0]} {new.split()[1][-8:]} (last bytes), "
                  f"found {old.strip()[:40]} … {old.strip()[-8:]}", file=sys.stderr)
    if len(stored) != len(lines):
        print(f"{path}: expected {len(lines)} frames, found {len(stored)}", file=sys.stderr)
    print("run scripts/icrc_vectors.py without arguments to write the file anew", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
