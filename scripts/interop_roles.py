#!/usr/bin/env python3
"""The roles as processes on a real RDMA device: `fatbtree bench` and `fatbtree memserver` with `--nic ibverbs:DEVICE`, a program of the
client library and single operations of the command line, in a QEMU guest with Debian's kernel and its soft RoCE (rdma_rxe), the other roles
on this machine.

    network "client":  guest, clients on rxe0, 10.1.0.2 ── edge-1-0 ─ agg-1-0 ─ core-0 ─ agg-0-0 ─ edge-0-0 ── memserver, software NIC, 10.0.0.2
    network "server":  bench, software NIC, 10.1.0.2  ── edge-1-0 ─ agg-1-0 ─ core-0 ─ agg-0-0 ─ edge-0-0 ── relay ── guest, memserver on rxe1,
                                                                                                                     10.0.0.2

Each network is a FatTree with k = 2 of five `fatbtree switch` and a `fatbtree controller`, wires are UDP ports; all read one cluster file. The
guest's copy of it differs in where gRPC is reached: behind QEMU's address translation. The relay counts READs, and loses frames when told to.

    scripts/interop_lab.sh                # installs what this needs, then runs it
    python3 scripts/interop_roles.py --fatbtree BINARY --library EXAMPLE --kernel DIR --work DIR

BINARY, and EXAMPLE of the client library, are built with the cargo feature `ibverbs`. One line a check; exits with 1 when one fails. Emulation only, no root, loopback only.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from rxe_lab.guests import BOOT_SECONDS, LabError, Report, configure_card, datagram_card, forwarding_card, free_ports, initramfs, kernel_image, start_guest
from rxe_lab.roles import BENCH_SECONDS, GUEST, Cluster, all_right, bench_in, guest_binary, in_order, run_in, start_memory_server_in, steps
from rxe_lab.tree import CLIENT, LINKS, SERVER, SWITCHES, Relay

# Where the guest reaches the gRPC of this machine's roles.
GUEST_FINDS = {"client controller": ("10.0.2.100", 50051), "client server": ("10.0.2.101", 50051),
               "server controller": ("10.0.2.102", 50051)}
EXAMPLE = "every_operation"  # of the client library
KEYS = 20_000
LOADED = 20_000
# When a check fails: what the guest's role says, and where its threads are.
WHY = "cat /tmp/memserver; for t in /proc/$!/task/*; do cat $t/comm $t/stack; done; dmesg | tail -n 20"


class Network(Cluster):
    """A FatTree with k = 2, its switches and controller once they are started."""

    def __init__(self, name, fatbtree, work, processes):
        ports = iter(free_ports(2 * len(LINKS) + 4))
        self.port = {end: next(ports) for link in LINKS for end in link}
        self.port["edge-0-0", 0], self.port["edge-1-0", 0] = next(ports), next(ports)
        self.server_port, self.client_port = next(ports), next(ports)
        hosts = {"host-0-0-0": [f'wire = "udp:127.0.0.1:{self.server_port}"'], "host-1-0-0": [f'wire = "udp:127.0.0.1:{self.client_port}"']}
        wires = {switch: [self.port[switch, port] for port in (0, 1)] for switch in SWITCHES}
        super().__init__(name, fatbtree, work, processes, ["k = 2"], hosts, wires)

    def insert_relay(self):
        """The cable of the memory server's host is cut in two. Sets the UDP ports of the far end: that of the host, and that of the relay."""
        near, here, far = self.server_port, *free_ports(2)
        self.relay = Relay((near, self.port["edge-0-0", 0]), (here, far))
        self.guest_wire = far, here

    def start(self):
        self.start_switches()
        self.controller = self.start_controller()

    def restart_controller(self, *options):
        self.controller.stop()
        self.controller = self.start_controller(*options)

    def control(self, *arguments):
        """What the controller says. It plans by itself, too, and then asks to be asked again."""
        end = time.monotonic() + 15
        while True:
            try:
                return self.ask("control", *arguments)
            except LabError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def start_bench(self, *arguments):
        command = [self.fatbtree, "bench", "--cluster", str(self.file), "--json", "-", "--patience", "60", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def client_on_soft_roce(report, network, guest):
    def up():
        network.start()
        network.role("memserver", "memserver", "left", "--keys", str(KEYS)).expect("gRPC on", 60)
        configure_card(guest, 0, CLIENT[0], SERVER, route="10.0.0.0/16")
        return f"{KEYS} keys"

    def refused():
        role = "/lab/fatbtree memserver left --cluster /lab/server.toml --nic ibverbs:"
        for device, told in [("mlx5_0", "found rxe0; name one of these"), ("rxe0", f"GID made of {SERVER[0]}, found [{CLIENT[0]}]")]:
            status, said = run_in(guest, role + device)
            if status != 1 or told not in " ".join(said):
                raise LabError(f"{device}: expected {told!r}, found status {status}: {' | '.join(said)}")
        return "; ".join(said)

    def walking():
        return all_right(bench_in(guest, "--operations 500 --root-to-leaf"), 500, least_trips=3.5)

    def index_reads():
        return all_right(bench_in(guest, "--operations 2000"), 2000, most_trips=2.5)

    def writes():
        return all_right(bench_in(guest, "--operations 1000 --workload a"), 1000)

    def library():
        status, said = run_in(guest, f"/lab/{EXAMPLE} /lab/client.toml rxe0", BENCH_SECONDS)
        counted = re.match(r"(\d+) operations by \d+ tasks, every answer right", said[-1])
        if status or not counted or int(counted[1]) < 800:
            raise LabError(f"{EXAMPLE} ended with {status}: {' | '.join(said[-3:])}")
        return said[-1]

    def single_operations():
        key = "9223372036854775808"
        expected = [
            (f"put {key} 'on soft RoCE'", 0, []),
            (f"get {key} --quote", 0, ['"on soft RoCE"']),
            (f"scan {key}..={key}", 0, [f'{key} "on soft RoCE"']),
            (f"delete {key}", 0, []),
            (f"get {key}", 1, []),
        ]
        for words, status, answer in expected:
            found = run_in(guest, f"/lab/fatbtree {words} --cluster /lab/client.toml --nic ibverbs:rxe0 --patience 60")
            if found != (status, answer):
                raise LabError(f"fatbtree {words}: expected {(status, answer)}, found {found}")
        return f"{len(expected)} commands, each with a connection of its own"

    steps(report, "client on soft RoCE", [
        ("switches, controller and memory server as processes", up),
        ("devices and addresses that are not there are refused", refused),
        ("bench in the guest, from the root", walking),
        ("bench in the guest, index reads through our switches", index_reads),
        ("bench in the guest, half of it writes", writes),
        ("a program of the client library in the guest", library),
        ("get, put, delete and scan in the guest", single_operations),
    ], guest, WHY)


def server_on_soft_roce(report, network, guest):
    relay = network.relay

    def bench(*arguments):
        return json.loads(network.ask("bench", "--json", "-", "--patience", "60", *arguments))

    def up():
        network.start()
        guest.run("/lab/rdma link delete rxe0 && /lab/ip address flush dev eth0 && /lab/ip link set eth0 down")
        configure_card(guest, 1, SERVER[0], CLIENT, route="10.1.0.0/16")
        return start_memory_server_in(guest, "rxe1")

    def load():
        network.ask("load", "--replace", "--keys", str(LOADED))
        return f"{LOADED} keys, over gRPC"

    def reads():
        before = relay.reads, relay.keyed
        said = all_right(bench("--operations", "2000"), 2000, most_trips=2.5)
        reads, keyed = relay.reads - before[0], relay.keyed - before[1]
        if keyed or reads < 2000:
            raise LabError(f"expected at least 2000 READs at the guest's port, none with an rkey below 256; found {reads}, {keyed} with one")
        return said

    def writes():
        return all_right(bench("--operations", "2000", "--workload", "a"), 2000)

    def inserts():
        load()
        return all_right(bench("--operations", "1000", "--workload", "d"), 1000)

    def reload_and_loss():
        load()
        # A plan by which index reads end higher up than by the plan in force.
        plan, budget = network.work / "plan.json", network.work / "budget.toml"
        budget.write_text("fat_root_ranges = 4\nset_nodes = [2, 4, 0, 4, 0]\n")
        network.restart_controller("--budget", str(budget))
        network.control("plan", "--save", str(plan))
        network.restart_controller()
        network.control("reload")
        all_right(bench("--operations", "500"), 500, most_trips=2.5)
        elsewhere, pairs = relay.elsewhere, len(relay.queue_pairs)
        running = network.start_bench("--operations", "60000")
        try:
            for further in (["--plan", str(plan)], [], ["--plan", str(plan)]):
                reads, end = relay.reads, time.monotonic() + 30
                while relay.reads < reads + 100 and time.monotonic() < end:
                    time.sleep(0.01)
                relay.mute = True
                network.control("reload", *further)
                # READs that are under way lead elsewhere now. The second time, until the client gives its queue pairs up.
                time.sleep(1.5 if not further else 0.3)
                relay.mute = False
            output, errors = running.communicate(timeout=BENCH_SECONDS)
        finally:
            relay.mute = False
            running.kill()
        if running.returncode:
            raise LabError(f"bench ended with {running.returncode}: {errors.strip()}")
        said = all_right(json.loads(output), 60000)
        elsewhere, pairs = relay.elsewhere - elsewhere, len(relay.queue_pairs) - pairs - 2
        if not elsewhere and not pairs:
            raise LabError(f"expected READs sent again to another address, or queue pairs that fail; found none ({said})")
        return f"{said}; {relay.lost} frames lost, {elsewhere} READs sent again to another address, {pairs} queue pairs connected anew"

    def sleeps():
        # Fields 14 and 15: processor time in the program and in the kernel, in hundredths of a second.
        def ticks():
            fields = guest.run("cat /proc/$!/stat")[-1].split()
            return int(fields[13]) + int(fields[14])

        before = ticks()
        guest.run("sleep 5")
        used = ticks() - before
        if used > 100:
            raise LabError(f"expected at most a fifth of a processor, found {used / 100} s of 5 s")
        return f"{used / 100} s of processor time in 5 s"

    def stops():
        return guest.run("kill $! && wait $! && tail -n 1 /tmp/memserver")[-1]

    steps(report, "memory server on soft RoCE", [
        ("in the guest, switches and controller on this machine", up),
        ("it is loaded", load),
        ("bench through our switches", reads),
        ("bench, half of it writes", writes),
        ("bench, with inserts", inserts),
        ("reloads while answers are lost", reload_and_loss),
        ("it sleeps while there are no requests", sleeps),
        ("it ends at SIGTERM", stops),
    ], guest, WHY)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fatbtree", type=Path, required=True, help="the fatbtree binary, built with the feature ibverbs")
    parser.add_argument("--library", type=Path, required=True, help="client/examples/every_operation, compiled with it and stripped")
    parser.add_argument("--kernel", type=Path, required=True, help="folder with boot/vmlinuz-* and lib/modules/*, modules.dep among them")
    parser.add_argument("--work", type=Path, required=True, help="folder for the initramfs, the cluster files and the logs")
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    report, processes = Report(), []
    client = Network("client", arguments.fatbtree, work, processes)
    server = Network("server", arguments.fatbtree, work, processes)
    # The guest's card lies behind the relay.
    server.insert_relay()
    state = {}

    def up():
        image = kernel_image(arguments.kernel)
        addresses = {name: f"{host}:{port}" for name, (host, port) in GUEST_FINDS.items()}
        archive = work / "initramfs.cpio"
        archive.write_bytes(initramfs(arguments.kernel, [guest_binary(arguments.fatbtree, work), arguments.library], {
            "client.toml": client.text(addresses["client controller"], addresses["client server"]),
            "server.toml": server.text(addresses["server controller"], f"{GUEST[0]}:{GUEST[1]}"),
        }))
        ports = {"client controller": client.controller_grpc, "client server": client.server_grpc,
                 "server controller": server.controller_grpc}
        cards = [
            datagram_card(0, CLIENT[1], client.client_port, client.port["edge-1-0", 0]),
            datagram_card(1, SERVER[1], *server.guest_wire),
            forwarding_card(2, [(GUEST_FINDS[name], port) for name, port in ports.items()], [(server.server_grpc, GUEST[1])]),
        ]
        guest = start_guest("roles", image, archive, cards, work / "guest.log", megabytes=768)
        processes.append(guest)
        # It unpacks a large program first.
        guest.ready(2 * BOOT_SECONDS)
        guest.run(f"/lab/ip link set eth2 up && /lab/ip address add {GUEST[0]}/24 dev eth2")
        state["guest"] = guest
        return f"{image.name}, {archive.stat().st_size >> 20} MiB initramfs"

    try:
        if report.check("roles on soft RoCE: a guest with the fatbtree binary", up):
            in_order(report, "roles on soft RoCE", [
                lambda: client_on_soft_roce(report, client, state["guest"]),
                client.stop,  # its share of the processor is of use elsewhere
                lambda: server_on_soft_roce(report, server, state["guest"]),
            ])
    finally:
        for process in processes:
            process.stop()
        server.relay.stop()
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
