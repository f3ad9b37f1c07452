#!/usr/bin/env python3
"""Two hosts that know an address and a route, on a network of two switches: QEMU guests with Debian's kernel and its soft RoCE.

    guest "client", 10.0.0.2 ── switch-0 (fat root, node sets) ── switch-1 (node sets) ── guest "server", 10.1.0.2
    bench on rxe0                        │ P4Runtime                                      memserver on rxe0
                                  fatbtree controller

    scripts/interop_lab.sh                # installs what this needs, then runs it
    python3 scripts/interop_hosts.py --fatbtree BINARY --kernel DIR --forge FORGE --work DIR

The guests are not told any MAC address. They ping each other and their gateway, with a hop limit of 1 as well; rping, ibv_rc_pingpong (hop
limit 1), ib_read_lat and ib_write_bw run between them, then ib_read_lat in a VLAN and with jumbo frames. Then both are roles of
Fat-B+Tree: gRPC between them goes through the switches like all else, index reads go through both, and the client's machine forges
what only switches may send (rxe_guest/forge.c).

BINARY is built with the cargo feature `ibverbs`. One line a check; exits with 1 when one fails. Emulation only, no root, loopback only.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

from rxe_lab.guests import (BOOT_SECONDS, COMMAND_SECONDS, LabError, Report, datagram_card, forwarding_card, free_ports, gid_index, initramfs,
                            kernel_image, start_guest)
from rxe_lab.roles import GUEST, Cluster, all_right, bench_in, guest_binary, in_order, start_memory_server_in, steps

ADDRESS = {"client": "10.0.0.2", "server": "10.1.0.2"}
GATEWAY = {"client": "10.0.0.1", "server": "10.1.0.1"}
MAC = {"client": "02:00:0a:00:00:02", "server": "02:00:0a:01:00:02"}
HOST = {"server": "host-1-0", "client": "host-0-0"}
# Where the guests find the controller.
GUEST_CONTROLLER = ("10.0.2.100", 50051)
KEYS = 20_000
FORGED = 500
VLAN = 7
PRIORITY = 5


def other(name):
    return "server" if name == "client" else "client"


class Network(Cluster):
    """Two switches with a host each."""

    def __init__(self, fatbtree, work, processes):
        self.guest_wire, self.switch_wire, trunk = {}, {}, free_ports(2)
        for name in ADDRESS:
            self.guest_wire[name], self.switch_wire[name] = free_ports(2)
        hosts = {host: [f'mac = "{MAC[name]}"', f'wire = "udp:127.0.0.1:{self.guest_wire[name]}"'] for name, host in HOST.items()}
        wires = {"switch-0": [self.switch_wire["client"], trunk[0]], "switch-1": [self.switch_wire["server"], trunk[1]]}
        super().__init__("pair", fatbtree, work, processes, ['kind = "pair"', "hosts = 1"], hosts, wires)

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


def configure(guest, name, vlan=None, mtu=1500):
    """An address and a route by the gateway, no more, on eth0 or in a VLAN on it; soft RoCE as rxe0. Returns the GID index of the address."""
    card = f"vlan{vlan}" if vlan else "eth0"
    guest.run(f"/lab/ip link set lo up && /lab/ip link set eth0 mtu {mtu} up")
    if vlan:
        guest.run(f"/lab/ip link add link eth0 name {card} type vlan id {vlan} egress-qos-map 0:{PRIORITY} && /lab/ip link set {card} up")
    guest.run(f"/lab/ip address add {ADDRESS[name]}/24 dev {card} && /lab/ip route add 10.0.0.0/8 via {GATEWAY[name]} dev {card}")
    guest.run("/lab/rdma link add rxe0 type rxe netdev eth0")
    return gid_index(guest, "rxe0", ADDRESS[name])


def forget(guest):
    guest.run("/lab/rdma link delete rxe0 && /lab/ip address flush dev eth0 && /lab/ip neighbour flush dev eth0")
    guest.run(f"[ ! -e /sys/class/net/vlan{VLAN} ] || /lab/ip link delete vlan{VLAN}")


def ping(guest, address, count=3, options=""):
    output = guest.run(f"ping -c {count} -W 5 {options} {address}")
    found = [line for line in output if "packets received" in line]
    if not found or f"{count} packets received" not in found[0]:
        raise LabError(f"expected {count} answers from {address}, found: {' | '.join(output[-3:])}")
    return f"{count} of {count} answers from {address}"


def between(server, client, of_server, of_client):
    """Runs a program's two ends on the two guests; what the client's said. It is started again until the server's end listens."""
    server.say(f"timeout 60 /lab/{of_server} >/tmp/waiting 2>&1; s=$?; cat /tmp/waiting; (exit $s)")
    try:
        output = client.run(f"n=0; until timeout 60 /lab/{of_client} >/tmp/said 2>&1; do n=$((n+1)); [ $n -lt 50 ] || break; sleep 0.2; done; "
                            "cat /tmp/said; [ $n -lt 50 ]")
    finally:
        done = server.expect(r"\[\[done (\d+)\]\]", COMMAND_SECONDS)
    if done[1] != "0":
        raise LabError(f"{server.name}: `{of_server}` ended with {done[1]}: {' | '.join(server.seen[-4:-1])}")
    return output


def perftest(server, client, gids, program, options, size, count):
    """A row of a perftest program's table. Its two ends meet over TCP, which goes through the switches as well."""
    command = f"{program} -d rxe0 -F -n {count} -s {size} {options} -x"
    output = between(server, client, f"{command} {gids['server']}", f"{command} {gids['client']} {ADDRESS['server']}")
    if len([line for line in output if re.match(rf"\s*{size}\s+{count}\s", line)]) != 1:
        raise LabError(f"expected a row '{size} {count} …' in the table of {program}, found: {' | '.join(output[-4:])}")
    return f"{count} of {size} bytes"


def rping(server, client):
    """librdmacm's ping-pong: connects by RDMA CM, over queue pair 1, and reads and writes by READ and WRITE."""
    count = 20
    common = f"rping -a {ADDRESS['server']} -C {count} -v -V"
    output = between(server, client, f"{common} -s", f"{common} -c")
    answers = [line for line in output if "ping data: rdma-ping-" in line]
    if len(answers) != count:
        raise LabError(f"expected {count} lines of ping data, found {len(answers)}: {' | '.join(output[-3:])}")
    return f"{count} of {count}"


def pingpong(server, client, gids):
    """rdma-core's own example. It sends RoCE with hop limit 1, as do many programs that were written after it."""
    count = 100
    common = f"ibv_rc_pingpong -d rxe0 -c -n {count} -g"
    output = between(server, client, f"{common} {gids['server']}", f"{common} {gids['client']} {ADDRESS['server']}")
    if not any(line.startswith(f"{count} iters in") for line in output):
        raise LabError(f"expected '{count} iters in …', found: {' | '.join(output[-3:])}")
    return f"{count} exchanges"


def plain(report, network, guests, gids):
    client, server = guests["client"], guests["server"]
    # A switch drops the controller's first probe of a link when it comes before the table that knows probes.
    before = network.drops()
    report.check("hosts: ping of the gateways", lambda: "; ".join(ping(guests[name], GATEWAY[name]) for name in guests))
    report.check("hosts: ping through both switches", lambda: "; ".join(ping(guests[name], ADDRESS[other(name)]) for name in guests))
    report.check("hosts: ping with a hop limit of 1", lambda: ping(client, ADDRESS["server"], options="-t 1"))
    report.check("hosts: rping", lambda: rping(server, client))
    report.check("hosts: ibv_rc_pingpong, hop limit 1", lambda: pingpong(server, client, gids))
    report.check("hosts: ib_read_lat", lambda: perftest(server, client, gids, "ib_read_lat", "-m 1024", 1024, 100))
    report.check("hosts: ib_write_bw", lambda: perftest(server, client, gids, "ib_write_bw", "-m 1024", 65536, 100))

    def silent():
        now = {where: count - before.get(where, 0) for where, count in network.drops().items()}
        drops = {where: count for where, count in now.items() if count and where[1] not in ("IPv6", "unanswered ARP")}
        if drops:
            raise LabError(f"expected nothing dropped but IPv6 and unanswered ARP, found {drops}")
        return "but IPv6 and unanswered ARP"

    report.check("hosts: nothing was dropped", silent)


def vlan(report, guests):
    def tagged():
        for guest in guests.values():
            forget(guest)
        gids = {name: configure(guest, name, vlan=VLAN) for name, guest in guests.items()}
        said = ping(guests["client"], ADDRESS["server"])
        row = perftest(guests["server"], guests["client"], gids, "ib_read_lat", "-m 1024", 1024, 100)
        # All packets that passed had a tag: the cards themselves have no address.
        sent = [guest.run(f"cat /sys/class/net/vlan{VLAN}/statistics/tx_packets")[-1] for guest in guests.values()]
        return f"{said}; ib_read_lat: {row}; {' and '.join(sent)} packets in it"

    report.check(f"hosts: VLAN {VLAN}, priority {PRIORITY}", tagged)


def jumbo(report, guests):
    def large():
        for guest in guests.values():
            forget(guest)
        gids = {name: configure(guest, name, mtu=9000) for name, guest in guests.items()}
        said = ping(guests["client"], ADDRESS["server"], options="-s 8900")
        row = perftest(guests["server"], guests["client"], gids, "ib_read_lat", "-m 4096", 4096, 100)
        return f"{said} with 8900 bytes; ib_read_lat with a path MTU of 4096: {row}"

    report.check("hosts: jumbo frames", large)


def roles(report, network, guests):
    client, server = guests["client"], guests["server"]

    def up():
        said = start_memory_server_in(server, "rxe0")
        network.ask("load", "--keys", str(KEYS))
        return f"{said}; {KEYS} keys"

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

    steps(report, "two guests on soft RoCE", [
        ("a memory server on one guest, gRPC through the switches", up),
        ("index reads through both switches", index_reads),
        ("bench, half of it writes", writes),
        ("forged index packets change nothing", forged),
    ], server, "cat /tmp/memserver; dmesg | tail -n 20")


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
        image = kernel_image(arguments.kernel)
        network.start_switches()
        network.start_controller()
        controller = ":".join(map(str, GUEST_CONTROLLER))
        archive = work / "initramfs.cpio"
        archive.write_bytes(initramfs(arguments.kernel, [guest_binary(arguments.fatbtree, work), arguments.forge], {
            "client.toml": network.text(controller, f"{ADDRESS['server']}:{GUEST[1]}"),
            "server.toml": network.text(controller, f"0.0.0.0:{GUEST[1]}"),
        }))
        for name in ADDRESS:
            inside = [(network.server_grpc, GUEST[1])] if name == "server" else []
            cards = [datagram_card(0, MAC[name], network.guest_wire[name], network.switch_wire[name]),
                     forwarding_card(1, [(GUEST_CONTROLLER, network.controller_grpc)], inside)]
            guests[name] = start_guest(name, image, archive, cards, work / f"{name}.log", megabytes=640)
            processes.append(guests[name])
        for name, guest in guests.items():
            guest.ready(2 * BOOT_SECONDS)
            guest.run(f"/lab/ip link set eth1 up && /lab/ip address add {GUEST[0]}/24 dev eth1")
            gids[name] = configure(guest, name)
        settle(network)
        return f"{image.name}, {archive.stat().st_size >> 20} MiB initramfs"

    try:
        if report.check("hosts: two guests with an address and a route, two switches", up):
            in_order(report, "hosts", [
                lambda: plain(report, network, guests, gids),
                lambda: vlan(report, guests),
                lambda: jumbo(report, guests),
                lambda: roles(report, network, guests),
            ])
    finally:
        for process in processes:
            process.stop()
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
