#!/usr/bin/env python3
"""Two hosts that know an address and a route, on a network of two switches: QEMU guests with Debian's kernel and its soft RoCE.

    guest "client", 10.0.0.2 ── switch-0 (fat root, node sets) ── switch-1 (node sets) ── guest "server", 10.1.0.2
    bench on rxe0                        │ P4Runtime                                      memserver on rxe0
                                  fatbtree controller

    scripts/interop_lab.sh                # installs what this needs, then runs it
    python3 scripts/interop_hosts.py --fatbtree BINARY --kernel DIR --forge FORGE --work DIR

Nobody tells the guests a MAC address. They ping each other and their gateway, with a hop limit of 1 and through a VLAN as well; ib_read_lat and
ib_write_bw run between them, also with jumbo frames. Then both are roles of Fat-B+Tree: gRPC between them goes through the
switches like all else, index reads go through both, and the client's machine forges what only switches may send (rxe_guest/forge.c).

BINARY is built with the cargo feature `ibverbs`. One line a check; exits with 1 when one fails. Emulation only, no root, loopback only.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from rxe_lab.guests import (BOOT_SECONDS, COMMAND_SECONDS, LabError, Process, Report, datagram_card, forwarding_card, free_ports, initramfs,
                            start_guest)

ADDRESS = {"client": "10.0.0.2", "server": "10.1.0.2"}
GATEWAY = {"client": "10.0.0.1", "server": "10.1.0.1"}
MAC = {"client": "02:00:0a:00:00:02", "server": "02:00:0a:01:00:02"}
SWITCHES = ["switch-0", "switch-1"]
# Where the guests find the controller, and where this machine finds the memory server.
GUEST_CONTROLLER = ("10.0.2.100", 50051)
GUEST_INSIDE = ("10.0.2.15", 50051)
KEYS = 20_000
FORGED = 500
SECONDS = 600  # no process outlives this
BENCH_SECONDS = 180


def other(name):
    return "server" if name == "client" else "client"


class Network:
    """The cluster file, and the processes on this machine."""

    def __init__(self, fatbtree, work, processes):
        self.fatbtree, self.work, self.processes = str(fatbtree), work, processes
        self.guest_wire, self.switch_wire, trunk = {}, {}, free_ports(2)
        for name in ADDRESS:
            self.guest_wire[name], self.switch_wire[name] = free_ports(2)
        self.wires = {"switch-0": [self.switch_wire["client"], trunk[0]], "switch-1": [self.switch_wire["server"], trunk[1]]}
        self.controller_grpc, self.server_grpc, *p4runtime = free_ports(2 + len(SWITCHES), socket.SOCK_STREAM)
        self.p4runtime = dict(zip(SWITCHES, p4runtime))
        self.file = work / "pair.toml"
        self.file.write_text(self.cluster(f"127.0.0.1:{self.controller_grpc}", f"127.0.0.1:{self.server_grpc}"))

    def cluster(self, controller, server):
        """The cluster file for those who find the controller and the memory server at these addresses."""
        lines = ["[network]", 'kind = "pair"', "hosts = 1", "[wires]", "first_port = 1024", "[controller]", f'grpc = "{controller}"',
                 "[trust]", 'plaintext = "I trust everybody on this network"',
                 "[[memory_server]]", 'name = "left"', 'host = "host-1-0"', f'grpc = "{server}"',
                 "[[client]]", 'name = "client"', 'host = "host-0-0"']
        for name, host in (("client", "host-0-0"), ("server", "host-1-0")):
            lines += ["[[host]]", f'name = "{host}"', f'mac = "{MAC[name]}"', f'wire = "udp:127.0.0.1:{self.guest_wire[name]}"']
        for number, switch in enumerate(SWITCHES, 1):
            wires = ", ".join(f'"udp:127.0.0.1:{port}"' for port in self.wires[switch])
            lines += ["[[switch]]", f'name = "{switch}"', f'p4runtime = "127.0.0.1:{self.p4runtime[switch]}"', f"device_id = {number}",
                      f"wires = [{wires}]"]
        return "\n".join(lines) + "\n"

    def role(self, name, *arguments):
        command = [self.fatbtree, *arguments, "--cluster", str(self.file), "--seconds", str(SECONDS)]
        role = Process(name, command, self.work / f"{name}.log")
        self.processes.append(role)
        return role

    def start(self):
        switches = [self.role(switch, "switch", switch) for switch in SWITCHES]
        for switch in switches:
            switch.expect("waits for a controller", 60)
        self.role("controller", "controller").expect("^controller on", 60)

    def ask(self, *arguments, seconds=BENCH_SECONDS):
        """What a command that ends says on its standard output."""
        command = [self.fatbtree, *arguments, "--cluster", str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise LabError(f"`{' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def drops(self):
        """Packets that were dropped, by switch and reason."""
        found = json.loads(self.ask("control", "drops", "--json"))
        return {(switch["name"], count["reason"]): count["packets"] for switch in found["switches"] for count in switch["reasons"]}

    def hits(self):
        """Index reads that were led on by the switches' tables."""
        return {table["table"]: table["hits"] for table in json.loads(self.ask("control", "counters", "--json"))["tables"]}


def settle(network):
    """Waits until both switches hold what they should."""
    end = time.monotonic() + 60
    while True:
        status = json.loads(network.ask("control", "status", "--json"))
        if all(switch["state"] == "settled" for switch in status["switches"]):
            return
        if time.monotonic() > end:
            raise LabError(f"expected settled switches, found {[(switch['name'], switch['state']) for switch in status['switches']]}")
        time.sleep(0.2)


def configure(guest, name, card="eth0", mtu=1500):
    """An address and a route by the gateway, no more; soft RoCE as rxe0 on the card. Returns the GID index of the address."""
    guest.run("/lab/ip link set lo up")
    guest.run(f"/lab/ip link set eth0 mtu {mtu} up && /lab/ip link set {card} mtu {mtu} up")
    guest.run(f"/lab/ip address add {ADDRESS[name]}/24 dev {card} && /lab/ip route add 10.0.0.0/8 via {GATEWAY[name]} dev {card}")
    guest.run(f"/lab/rdma link add rxe0 type rxe netdev {card}")
    output = guest.run(
        "for t in $(seq 100); do for i in 0 1 2 3 4 5; do "
        "grep -q ffff /sys/class/infiniband/rxe0/ports/1/gids/$i && echo gid=$i && break 2; done; sleep 0.1; done")
    found = [line for line in output if line.startswith("gid=")]
    if not found:
        raise LabError(f"{guest.name}: expected a GID made of {ADDRESS[name]} on rxe0, found none")
    return int(found[0][4:])


def forget(guest, card="eth0"):
    guest.run(f"/lab/rdma link delete rxe0 && /lab/ip address flush dev {card} && /lab/ip neighbour flush dev {card}")


def ping(guest, address, count=3, options=""):
    output = guest.run(f"ping -c {count} -W 5 {options} {address}")
    found = [line for line in output if "packets received" in line]
    if not found or f"{count} packets received" not in found[0]:
        raise LabError(f"expected {count} answers from {address}, found: {' | '.join(output[-3:])}")
    return f"{count} of {count} answers from {address}"


def perftest(server, client, gids, program, options, size, count):
    """A row of a perftest program's table. Its two ends meet over TCP, which goes through the switches as well."""
    common = f"{program} -d rxe0 -F -n {count} -s {size} {options}"
    server.say(f"/lab/{common} -x {gids['server']}")
    server.expect("Waiting for client", COMMAND_SECONDS)
    output = client.run(f"/lab/{common} -x {gids['client']} {ADDRESS['server']}")
    done = server.expect(r"\[\[done (\d+)\]\]", COMMAND_SECONDS)
    rows = [line.split() for line in output if re.match(rf"\s*{size}\s+{count}\s", line)]
    if done[1] != "0" or len(rows) != 1:
        raise LabError(f"expected a row '{size} {count} …' in the table of {program}, found: {' | '.join(output[-4:])}")
    return f"{count} of {size} bytes"


def plain(report, network, guests, gids):
    client, server = guests["client"], guests["server"]
    report.check("hosts: ping of the gateways", lambda: "; ".join(ping(guests[name], GATEWAY[name]) for name in guests))
    report.check("hosts: ping through both switches", lambda: "; ".join(ping(guests[name], ADDRESS[other(name)]) for name in guests))
    report.check("hosts: ping with a hop limit of 1", lambda: ping(client, ADDRESS["server"], options="-t 1"))
    report.check("hosts: ib_read_lat", lambda: perftest(server, client, gids, "ib_read_lat", "-m 1024", 1024, 100))
    report.check("hosts: ib_write_bw", lambda: perftest(server, client, gids, "ib_write_bw", "-m 1024", 65536, 100))

    def silent():
        drops = {where: count for where, count in network.drops().items() if count and where[1] not in ("IPv6", "ARP")}
        if drops:
            raise LabError(f"expected nothing dropped but IPv6 and ARP for nobody, found {drops}")
        return "but IPv6 and ARP for nobody"

    report.check("hosts: nothing was dropped", silent)


def vlan(report, guests):
    def tagged():
        for name, guest in guests.items():
            forget(guest)
            guest.run("/lab/ip link add link eth0 name vlan7 type vlan id 7 egress-qos-map 0:5 && /lab/ip link set vlan7 up")
            guest.run(f"/lab/ip address add {ADDRESS[name]}/24 dev vlan7 && /lab/ip route add 10.0.0.0/8 via {GATEWAY[name]} dev vlan7")
        said = ping(guests["client"], ADDRESS["server"])
        for guest in guests.values():
            guest.run("/lab/ip link delete vlan7")
        return said

    report.check("hosts: ping in a VLAN, priority 5", tagged)


def jumbo(report, guests):
    def large():
        gids = {name: configure(guest, name, mtu=9000) for name, guest in guests.items()}
        said = ping(guests["client"], ADDRESS["server"], options="-s 8900")
        row = perftest(guests["server"], guests["client"], gids, "ib_read_lat", "-m 4096", 4096, 100)
        return f"{said} with 8900 bytes; ib_read_lat with a path MTU of 4096: {row}"

    report.check("hosts: jumbo frames", large)


def bench_in(guest, *arguments):
    """`fatbtree bench` in the guest, on its soft RoCE: its result."""
    command = f"/lab/fatbtree bench --cluster /lab/client.toml --nic ibverbs:rxe0 --patience 60 --json - {' '.join(arguments)}"
    guest.say(f"{command} >/tmp/said 2>&1; s=$?; cat /tmp/said; (exit $s)")
    done = guest.expect(r"\[\[done (\d+)\]\]", BENCH_SECONDS)
    said = guest.seen[:-1]
    if done[1] != "0":
        raise LabError(f"`{command}` ended with {done[1]}: {' | '.join(said[-3:])}")
    return json.loads("\n".join(said[said.index("{"):]))


def all_right(result, operations, most_trips=None):
    found = {name: result[name] for name in ("operations", "wrong", "failed", "unknown")}
    if found != {"operations": operations, "wrong": 0, "failed": 0, "unknown": 0}:
        raise LabError(f"expected {operations} operations, none wrong, failed or unknown; found {found}: {result['first_wrong']}")
    if most_trips and result["round_trips"] > most_trips:
        raise LabError(f"expected at most {most_trips} round trips, found {result['round_trips']:.2f}")
    return f"{operations} operations, 0 wrong, 0 failed, {result['round_trips']:.2f} round trips each"


def roles(report, network, guests):
    client, server = guests["client"], guests["server"]

    def up():
        said = server.run("/lab/fatbtree memserver left --cluster /lab/server.toml --nic ibverbs:rxe0 >/tmp/memserver 2>&1 & "
                          "for t in $(seq 300); do grep -q 'gRPC on' /tmp/memserver && break; sleep 0.1; done; "
                          "cat /tmp/memserver; grep -q 'gRPC on' /tmp/memserver")
        network.ask("load", "--keys", str(KEYS))
        return f"{said[-1]}; {KEYS} keys"

    def index_reads():
        return all_right(bench_in(client, "--operations", "2000"), 2000, most_trips=2.5)

    def writes():
        return all_right(bench_in(client, "--operations", "1000", "--workload", "a"), 1000)

    def forged():
        time.sleep(1)
        before, drops = network.hits(), network.drops()
        output = client.run(f"/lab/forge eth0 {ADDRESS['client']} {ADDRESS['server']} 17 {FORGED}")
        if output[-1] != f"sent {2 * FORGED}":
            raise LabError(f"expected {2 * FORGED} frames sent, found {output[-1]}")
        time.sleep(1)
        more = {where: count - drops.get(where, 0) for where, count in network.drops().items()}
        at_switch = more["switch-0", "forged index header"]
        if at_switch != FORGED:
            raise LabError(f"expected {FORGED} forged packets dropped at switch-0, found {at_switch}")
        after = network.hits()
        if after != before:
            raise LabError(f"expected no look-ups in the trees' tables, found {before}, then {after}")
        return f"{at_switch} dropped at switch-0, no table looked at; {index_reads()}"

    for what, step in [("a memory server on one guest, gRPC through the switches", up), ("index reads through both switches", index_reads),
                       ("bench, half of it writes", writes), ("forged index packets change nothing", forged)]:
        if not report.check(f"two guests on soft RoCE: {what}", step):
            server.say("cat /tmp/memserver; dmesg | tail -n 20")
            server.expect(r"\[\[done", COMMAND_SECONDS)
            raise LabError("the checks behind this one build on it")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fatbtree", type=Path, required=True, help="the fatbtree binary, built with the feature ibverbs")
    parser.add_argument("--kernel", type=Path, required=True, help="folder with boot/vmlinuz-* and lib/modules/*, modules.dep among them")
    parser.add_argument("--forge", type=Path, required=True, help="rxe_guest/forge.c, compiled")
    parser.add_argument("--work", type=Path, required=True, help="folder for the initramfs, the cluster file and the logs")
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    report, processes, guests, gids = Report(), [], {}, {}
    network = Network(arguments.fatbtree, work, processes)

    def up():
        images = sorted((arguments.kernel / "boot").glob("vmlinuz-*"))
        if not images:
            raise LabError(f"{arguments.kernel}/boot: expected vmlinuz-*, found none")
        network.start()
        program = work / "fatbtree"
        subprocess.run(["strip", "-o", str(program), str(arguments.fatbtree)], check=True)
        controller = f"{GUEST_CONTROLLER[0]}:{GUEST_CONTROLLER[1]}"
        archive = work / "initramfs.cpio"
        archive.write_bytes(initramfs(arguments.kernel, [program, arguments.forge], {
            "client.toml": network.cluster(controller, f"{ADDRESS['server']}:{GUEST_INSIDE[1]}"),
            "server.toml": network.cluster(controller, f"0.0.0.0:{GUEST_INSIDE[1]}"),
        }))
        for name in ADDRESS:
            inside = [(network.server_grpc, GUEST_INSIDE[1])] if name == "server" else []
            cards = [datagram_card(0, MAC[name], network.guest_wire[name], network.switch_wire[name]),
                     forwarding_card(1, [(GUEST_CONTROLLER, network.controller_grpc)], inside)]
            guests[name] = start_guest(name, images[0], archive, cards, work / f"{name}.log", megabytes=640)
            processes.append(guests[name])
        for name, guest in guests.items():
            guest.expect(r"\[\[ready\]\]", 2 * BOOT_SECONDS)
            guest.run(f"/lab/ip link set eth1 up && /lab/ip address add {GUEST_INSIDE[0]}/24 dev eth1")
            gids[name] = configure(guest, name)
        settle(network)
        return f"{images[0].name}, {archive.stat().st_size >> 20} MiB initramfs"

    try:
        if report.check("hosts: two guests with an address and a route, two switches", up):
            try:
                plain(report, network, guests, gids)
                vlan(report, guests)
                jumbo(report, guests)
                roles(report, network, guests)
            except Exception as error:  # what comes behind a broken step cannot run: that is a failure, too
                report.line(False, f"hosts: not all checks could run: {type(error).__name__}: {error}")
    finally:
        for process in processes:
            process.stop()
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
