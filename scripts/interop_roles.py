#!/usr/bin/env python3
"""The roles as processes on a real RDMA device: `fatbtree bench` and `fatbtree memserver` with `--nic ibverbs:DEVICE`, in a QEMU guest with
Debian's kernel and its soft RoCE (rdma_rxe), the other roles on this machine.

    network "client":  guest, bench on rxe0, 10.1.0.2 ── edge-1-0 ─ agg-1-0 ─ core-0 ─ agg-0-0 ─ edge-0-0 ── memserver, software NIC, 10.0.0.2
    network "server":  bench, software NIC, 10.1.0.2  ── edge-1-0 ─ agg-1-0 ─ core-0 ─ agg-0-0 ─ edge-0-0 ── relay ── guest, memserver on rxe1,
                                                                                                                     10.0.0.2

Each network is a FatTree with k = 2 of five `fatbtree switch` and a `fatbtree controller`, wires are UDP ports; all read one cluster file. The
guest's copy of it differs in where gRPC is reached: behind QEMU's address translation. The relay counts READs, and loses frames when told to.

    scripts/interop_lab.sh                # installs what this needs, then runs it
    python3 scripts/interop_roles.py --fatbtree BINARY --kernel DIR --work DIR

BINARY is built with the cargo feature `ibverbs`. One line a check; exits with 1 when one fails. Emulation only, no root, loopback only.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from rxe_lab.guests import (BOOT_SECONDS, COMMAND_SECONDS, LabError, Process, Report, configure_card, datagram_card, forwarding_card,
                            free_ports, initramfs, start_guest)
from rxe_lab.tree import CLIENT, LINKS, SERVER, SWITCHES, Relay

# Where the guest reaches the gRPC of this machine's roles, and where its own memory server listens.
GUEST_FINDS = {"client controller": ("10.0.2.100", 50051), "client server": ("10.0.2.101", 50051),
               "server controller": ("10.0.2.102", 50051)}
GUEST = ("10.0.2.15", 50051)
KEYS = 20_000
LOADED = 20_000
SECONDS = 900  # no process outlives this
# Of one bench: emulated machines are slow.
BENCH_SECONDS = 180


class Network:
    """A network's cluster file, and its switches and controller once they are started."""

    def __init__(self, name, fatbtree, work, processes):
        self.name, self.fatbtree, self.work, self.processes, self.roles = name, str(fatbtree), work, processes, []
        ports = iter(free_ports(2 * len(LINKS) + 4))
        self.wires = {end: next(ports) for link in LINKS for end in link}
        self.wires["edge-0-0", 0], self.wires["edge-1-0", 0] = next(ports), next(ports)
        self.server_port, self.client_port = next(ports), next(ports)
        grpc = iter(free_ports(len(SWITCHES) + 2, socket.SOCK_STREAM))
        self.p4runtime = {switch: next(grpc) for switch in SWITCHES}
        self.controller_grpc, self.server_grpc = next(grpc), next(grpc)
        self.file = work / f"{name}.toml"
        self.file.write_text(self.cluster(f"127.0.0.1:{self.controller_grpc}", f"127.0.0.1:{self.server_grpc}"))

    def cluster(self, controller, server):
        """The cluster file for those who find the controller and the memory server at these addresses."""
        lines = ["[network]", "k = 2", "[wires]", "first_port = 1024", "[controller]", f'grpc = "{controller}"',
                 "[trust]", 'plaintext = "I trust everybody on this network"',
                 "[[memory_server]]", 'name = "left"', 'host = "host-0-0-0"', f'grpc = "{server}"',
                 "[[client]]", 'name = "client"', 'host = "host-1-0-0"',
                 "[[host]]", 'name = "host-0-0-0"', f'wire = "udp:127.0.0.1:{self.server_port}"',
                 "[[host]]", 'name = "host-1-0-0"', f'wire = "udp:127.0.0.1:{self.client_port}"']
        for number, switch in enumerate(SWITCHES, 1):
            wires = ", ".join(f'"udp:127.0.0.1:{self.wires[switch, port]}"' for port in (0, 1))
            lines += ["[[switch]]", f'name = "{switch}"', f'p4runtime = "127.0.0.1:{self.p4runtime[switch]}"', f"device_id = {number}",
                      f"wires = [{wires}]"]
        return "\n".join(lines) + "\n"

    def role(self, name, *arguments):
        command = [self.fatbtree, *arguments, "--cluster", str(self.file), "--seconds", str(SECONDS)]
        role = Process(f"{self.name} {name}", command, self.work / f"{self.name}-{name}.log")
        self.processes.append(role)
        self.roles.append(role)
        return role

    def stop(self):
        for role in self.roles:
            role.stop()

    def insert_relay(self):
        """The cable of the memory server's host is cut in two. Sets the UDP ports of the far end: that of the host, and that of the relay."""
        near, here, far = self.server_port, *free_ports(2)
        self.relay = Relay((near, self.wires["edge-0-0", 0]), (here, far))
        self.guest_wire = far, here

    def start_controller(self, *options):
        self.controller = self.role("controller", "controller", *options)
        self.controller.expect("^controller on", 60)

    def start(self, *of_controller):
        switches = [self.role(switch, "switch", switch) for switch in SWITCHES]
        for switch in switches:
            switch.expect("waits for a controller", 60)
        self.start_controller(*of_controller)

    def ask(self, *arguments, seconds=BENCH_SECONDS):
        """What a command that ends says on its standard output."""
        command = [self.fatbtree, *arguments, "--cluster", str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise LabError(f"`{' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def control(self, *arguments):
        """The same of the controller. It plans by itself, too, and then asks to be asked again."""
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


def all_right(result, operations, most_trips=None, least_trips=None):
    """Fails unless every answer was right, and the round trips of an operation are within bounds; says what was counted."""
    found = {name: result[name] for name in ("operations", "wrong", "failed", "unknown")}
    if found != {"operations": operations, "wrong": 0, "failed": 0, "unknown": 0}:
        raise LabError(f"expected {operations} operations, none wrong, failed or unknown; found {found}: {result['first_wrong']}")
    trips = result["round_trips"]
    if most_trips and trips > most_trips or least_trips and trips < least_trips:
        raise LabError(f"expected {f'at most {most_trips}' if most_trips else f'at least {least_trips}'} round trips, found {trips:.2f}")
    return f"{operations} operations, 0 wrong, 0 failed, {trips:.2f} round trips each, {result['seconds']:.1f} s"


def run_in(guest, command, seconds=COMMAND_SECONDS):
    """Runs a program of the guest that may fail; exit status, and what it said."""
    guest.say(f"{command} >/tmp/said 2>&1; s=$?; cat /tmp/said; (exit $s)")
    done = guest.expect(r"\[\[done (\d+)\]\]", seconds)
    return int(done[1]), guest.seen[:-1]


def bench_in(guest, *arguments):
    """`fatbtree bench` in the guest, on its soft RoCE: its result."""
    command = f"/lab/fatbtree bench --cluster /lab/client.toml --nic ibverbs:rxe0 --patience 60 --json - {' '.join(arguments)}"
    status, said = run_in(guest, command, BENCH_SECONDS)
    if status:
        raise LabError(f"`{command}` ended with {status}: {' | '.join(said[-3:])}")
    return json.loads("\n".join(said[said.index("{"):]))


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

    run(report, guest, "client on soft RoCE", [
        ("switches, controller and memory server as processes", up),
        ("devices and addresses that are not there are refused", refused),
        ("bench in the guest, from the root", walking),
        ("bench in the guest, index reads through our switches", index_reads),
        ("bench in the guest, half of it writes", writes),
    ])


def server_on_soft_roce(report, network, guest):
    relay = network.relay

    def bench(*arguments):
        return json.loads(network.ask("bench", "--json", "-", "--patience", "60", *arguments))

    def up():
        network.start()
        guest.run("/lab/rdma link delete rxe0 && /lab/ip address flush dev eth0 && /lab/ip link set eth0 down")
        configure_card(guest, 1, SERVER[0], CLIENT, route="10.1.0.0/16")
        said = guest.run("/lab/fatbtree memserver left --cluster /lab/server.toml --nic ibverbs:rxe1 >/tmp/memserver 2>&1 & "
                         "for t in $(seq 300); do grep -q 'gRPC on' /tmp/memserver && break; sleep 0.1; done; "
                         "cat /tmp/memserver; grep -q 'gRPC on' /tmp/memserver")
        return said[-1]

    def load():
        network.ask("load", "--keys", str(LOADED))
        return f"{LOADED} keys, over gRPC"

    def reads():
        before = relay.reads, relay.keyed
        said = all_right(bench("--operations", "2000"), 2000, most_trips=2.5)
        reads, keyed = relay.reads - before[0], relay.keyed - before[1]
        if keyed or reads < 2000:
            raise LabError(f"expected at least 2000 READs at the guest's port, none with rkey 0; found {reads}, {keyed} with rkey 0")
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
        network.controller.stop()
        network.start_controller("--budget", str(budget))
        network.control("plan", "--save", str(plan))
        network.controller.stop()
        network.start_controller()
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

    run(report, guest, "memory server on soft RoCE", [
        ("in the guest, switches and controller on this machine", up),
        ("it is loaded", load),
        ("bench through our switches", reads),
        ("bench, half of it writes", writes),
        ("bench, with inserts", inserts),
        ("reloads while answers are lost", reload_and_loss),
        ("it sleeps when nobody asks", sleeps),
        ("it ends at SIGTERM", stops),
    ])


def run(report, guest, where, steps):
    for what, step in steps:
        if not report.check(f"{where}: {what}", step):
            # For the guest's log: what its role says, and where its threads are.
            guest.say("cat /tmp/memserver; for t in /proc/$!/task/*; do cat $t/comm $t/stack; done; dmesg | tail -n 20")
            guest.expect(r"\[\[done", COMMAND_SECONDS)
            raise LabError("the checks behind this one build on it")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fatbtree", type=Path, required=True, help="the fatbtree binary, built with the feature ibverbs")
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
        images = sorted((arguments.kernel / "boot").glob("vmlinuz-*"))
        if not images:
            raise LabError(f"{arguments.kernel}/boot: expected vmlinuz-*, found none")
        # The guest's initramfs lies in its memory: no symbols.
        program = work / "fatbtree"
        subprocess.run(["strip", "-o", str(program), str(arguments.fatbtree)], check=True)
        addresses = {name: f"{host}:{port}" for name, (host, port) in GUEST_FINDS.items()}
        archive = work / "initramfs.cpio"
        archive.write_bytes(initramfs(arguments.kernel, [program], {
            "client.toml": client.cluster(addresses["client controller"], addresses["client server"]),
            "server.toml": server.cluster(addresses["server controller"], f"{GUEST[0]}:{GUEST[1]}"),
        }))
        ports = {"client controller": client.controller_grpc, "client server": client.server_grpc,
                 "server controller": server.controller_grpc}
        cards = [
            datagram_card(0, CLIENT[1], client.client_port, client.wires["edge-1-0", 0]),
            datagram_card(1, SERVER[1], *server.guest_wire),
            forwarding_card(2, [(GUEST_FINDS[name], port) for name, port in ports.items()], [(server.server_grpc, GUEST[1])]),
        ]
        guest = start_guest("roles", images[0], archive, cards, work / "guest.log", megabytes=768)
        processes.append(guest)
        # It unpacks a large program first.
        guest.expect(r"\[\[ready\]\]", 2 * BOOT_SECONDS)
        guest.run(f"/lab/ip link set eth2 up && /lab/ip address add {GUEST[0]}/24 dev eth2")
        state["guest"] = guest
        return f"{images[0].name}, {archive.stat().st_size >> 20} MiB initramfs"

    try:
        if report.check("roles on soft RoCE: a guest with the fatbtree binary", up):
            try:
                client_on_soft_roce(report, client, state["guest"])
                client.stop()  # its share of the processor is of use elsewhere
                server_on_soft_roce(report, server, state["guest"])
            except Exception as error:  # what comes behind a broken step cannot run: that is a failure, too
                report.line(False, f"roles on soft RoCE: not all checks could run: {type(error).__name__}: {error}")
    finally:
        for process in processes:
            process.stop()
        server.relay.stop()
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
