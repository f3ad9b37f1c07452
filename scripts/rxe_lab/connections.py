"""Connections by RDMA CM: programs of rdma-core in a guest, and rping on our software NIC (fabric/soft-nic/examples/rping.rs), through a switch.

    guest "client" 192.168.7.2 ── port 2 [ fatbtree switch ] port 3 ── udp ── software NIC 192.168.7.3
"""

import re
import subprocess
import time

from .guests import COMMAND_SECONDS, LabError, Process

SOFT_IPV4 = "192.168.7.3"
SOFT_MAC = "02:00:00:00:00:03"
SOFT_PORT = 3
RPING_PORT = 7174


class SoftPeer:
    """rping on the software NIC. Each run keeps what it has sent and received."""

    def __init__(self, arguments, udp):
        self.arguments, self.captures = arguments, []
        # The switch listens at the first of these ports, and sends to the second one.
        self.ports = f"127.0.0.1:{udp[1]},127.0.0.1:{udp[0]}"

    def start(self, *words):
        number = len(self.captures)
        self.captures.append(self.arguments.work / f"soft-{number}.pcap")
        command = [str(self.arguments.rping), "--capture", str(self.captures[-1]), SOFT_IPV4, self.ports, *words]
        return Process(f"software NIC {number}", command, self.arguments.work / f"soft-{number}.log")


def served(process):
    """Waits for the end of one connection that our side has served; how many pings there were."""
    return int(process.expect(r"served (\d+) pings: Disconnected", COMMAND_SECONDS)[1])


def rping_to_us(client, soft):
    """The kernel's side connects, sends, is read from and written to; ours serves."""
    process = soft.start()
    try:
        process.expect("ready", COMMAND_SECONDS)
        found = []
        for count, size in ((20, 64), (20, 5000)):
            client.run(f"/lab/rping -c -a {SOFT_IPV4} -C {count} -S {size} -V")
            found.append(served(process))
        if found != [20, 20]:
            raise LabError(f"expected 20 pings of each run, found {found}")
        return "20 of 64 and 20 of 5,000 bytes"
    finally:
        process.stop()


def rejected(client, soft):
    """A port at which nothing listens."""
    process = soft.start()
    try:
        process.expect("ready", COMMAND_SECONDS)
        output = client.run(f"/lab/rping -c -a {SOFT_IPV4} -p 99 -C 1; [ $? -ne 0 ]")
        if not any("RDMA_CM_EVENT_REJECTED, error 8" in line for line in output):
            raise LabError(f"expected a rejection with reason 8, found: {' | '.join(output[-3:])}")
        return "rejected, reason 8 (invalid service)"
    finally:
        process.stop()


def many(client, soft):
    """ucmatose connects all, and our side ends them."""
    count = 100
    process = soft.start("hang-up")
    try:
        process.expect("ready", COMMAND_SECONDS)
        output = client.run(f"/lab/ucmatose -s {SOFT_IPV4} -p {RPING_PORT} -c {count} -C 0")
        if "return status 0" not in output:
            raise LabError(f"expected 'return status 0', found: {' | '.join(output[-3:])}")
        for _ in range(count):
            served(process)
        return f"{count} connections at once"
    finally:
        process.stop()


def killed(client, peer, soft):
    """The guest's program is killed while our side pings it: its kernel ends the connection."""
    address, mac = peer
    client.run(f"/lab/rping -s -a {address} -C 1000000 -S 64 >/dev/null 2>&1 & sleep 1")
    process = soft.start(f"{address},{mac}", "1000000", "64")
    try:
        process.expect("connected", COMMAND_SECONDS)
        client.run("sleep 0.5; kill -9 $!; wait $! 2>/dev/null; true")
        process.expect("the connection has ended: Disconnected", COMMAND_SECONDS)
    finally:
        process.stop()
    return "our side is told so"


def rping_of_ours(client, peer, soft):
    """Our side connects to the kernel's; and to one where nothing listens any more."""
    address, mac = peer
    count, size = 20, 3000
    client.say(f"/lab/rping -s -a {address} -C {count} -S {size}")
    for _ in range(100):
        process = soft.start(f"{address},{mac}", str(count), str(size))
        found = process.expect(r"came back|Rejected \{ reason: 8", COMMAND_SECONDS)
        if "Rejected" not in found[0]:
            break
        process.stop()
        time.sleep(0.1)
    process.expect("Disconnected", COMMAND_SECONDS)
    process.stop()
    client.expect(r"\[\[done 0\]\]", COMMAND_SECONDS)
    process = soft.start(f"{address},{mac}", "1", str(size))
    process.expect(r"Rejected \{ reason: 8", COMMAND_SECONDS)
    process.stop()
    return f"{count} of {size} bytes; rejected where nothing listens any more"


def analysed(soft):
    """tshark reads all that went over our software NIC's wire."""
    messages = 0
    for capture in soft.captures:
        # The last frame of a process that was ended may be cut short.
        tshark = ["tshark", "-r", str(capture), "-T", "fields", "-e", "_ws.col.Info"]
        infos = subprocess.run(tshark, capture_output=True, text=True, check=False).stdout.splitlines()
        messages += sum(info.startswith("CM: ") for info in infos)
        bad = [info for info in infos if re.search(r"[Mm]alformed|[Uu]nknown|Exception", info)]
        if bad:
            raise LabError(f"{capture}: {' | '.join(bad[:3])}")
    if messages < 300:
        raise LabError(f"expected at least 300 messages of CM, found {messages}")
    return f"{messages} messages of the Communication Manager, no malformed packet"


def connections(report, client, peer, udp, arguments):
    soft = SoftPeer(arguments, udp)
    client.run(f"/lab/ip neighbour replace {SOFT_IPV4} lladdr {SOFT_MAC} dev eth0 nud permanent")
    report.check("RDMA CM: rping in the guest pings our software NIC", lambda: rping_to_us(client, soft))
    report.check("RDMA CM: rping in the guest asks at another port", lambda: rejected(client, soft))
    report.check("RDMA CM: ucmatose in the guest connects to our software NIC", lambda: many(client, soft))
    report.check("RDMA CM: our software NIC pings rping in the guest", lambda: rping_of_ours(client, peer, soft))
    report.check("RDMA CM: the guest's program is killed", lambda: killed(client, peer, soft))
    report.check("RDMA CM: a protocol analyser reads it", lambda: analysed(soft))
