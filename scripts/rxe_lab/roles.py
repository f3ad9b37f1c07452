"""`fatbtree` itself in the lab: a cluster file, its roles as processes on this machine, and roles in guests, on their soft RoCE."""

import json
import socket
import subprocess

from .guests import COMMAND_SECONDS, LabError, Process, free_ports

# Where a guest's card of QEMU's user network is, and its memory server's gRPC on it.
GUEST = ("10.0.2.15", 50051)
SECONDS = 900  # no process outlives this
BENCH_SECONDS = 180  # of one bench: emulated machines are slow


class Cluster:
    """A cluster file, and the processes on this machine that read it. Memory server `left` is on one host, client `client` on another.

    network: lines of [network]; hosts: of each host its lines, the memory server's first, the client's second; wires: of each switch the UDP
    ports of its wires, by name.
    """

    def __init__(self, name, fatbtree, work, processes, network, hosts, wires):
        self.name, self.fatbtree, self.work, self.processes, self.roles = name, str(fatbtree), work, processes, []
        self.network, self.hosts, self.wires = network, hosts, wires
        self.controller_grpc, self.server_grpc, *p4runtime = free_ports(2 + len(wires), socket.SOCK_STREAM)
        self.p4runtime = dict(zip(wires, p4runtime))
        self.file = work / f"{name}.toml"
        self.file.write_text(self.text(f"127.0.0.1:{self.controller_grpc}", f"127.0.0.1:{self.server_grpc}"))

    def text(self, controller, server):
        """The cluster file with the controller and the memory server at these addresses."""
        of_server, of_client = self.hosts
        lines = ["[network]", *self.network, "[wires]", "first_port = 1024", "[controller]", f'grpc = "{controller}"',
                 "[trust]", 'plaintext = "I trust everybody on this network"',
                 "[[memory_server]]", 'name = "left"', f'host = "{of_server}"', f'grpc = "{server}"',
                 "[[client]]", 'name = "client"', f'host = "{of_client}"']
        for host, more in self.hosts.items():
            lines += ["[[host]]", f'name = "{host}"', *more]
        for number, (switch, ports) in enumerate(self.wires.items(), 1):
            wires = ", ".join(f'"udp:127.0.0.1:{port}"' for port in ports)
            lines += ["[[switch]]", f'name = "{switch}"', f'p4runtime = "127.0.0.1:{self.p4runtime[switch]}"', f"device_id = {number}",
                      f"wires = [{wires}]"]
        return "\n".join(lines) + "\n"

    def role(self, name, *arguments):
        command = [self.fatbtree, *arguments, "--cluster", str(self.file), "--seconds", str(SECONDS)]
        role = Process(f"{self.name} {name}", command, self.work / f"{self.name}-{name}.log")
        self.processes.append(role)
        self.roles.append(role)
        return role

    def start_controller(self, *options):
        controller = self.role("controller", "controller", *options)
        controller.expect("^controller on", 60)
        return controller

    def start_switches(self):
        switches = [self.role(switch, "switch", switch) for switch in self.wires]
        for switch in switches:
            switch.expect("waits for a controller", 60)

    def stop(self):
        for role in self.roles:
            role.stop()

    def ask(self, *arguments, seconds=BENCH_SECONDS):
        """What a command that ends says on its standard output."""
        command = [self.fatbtree, *arguments, "--cluster", str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise LabError(f"`{' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def guest_binary(fatbtree, work):
    """The binary as guests have it: their initramfs lies in their memory, so without symbols."""
    stripped = work / "fatbtree"
    subprocess.run(["strip", "-o", str(stripped), str(fatbtree)], check=True)
    return stripped


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


def start_memory_server_in(guest, device):
    """`fatbtree memserver` in the guest; what it said last when it was up. The shell has its process as `$!`."""
    said = guest.run(f"/lab/fatbtree memserver left --cluster /lab/server.toml --nic ibverbs:{device} >/tmp/memserver 2>&1 & "
                     "for t in $(seq 300); do grep -q 'gRPC on' /tmp/memserver && break; sleep 0.1; done; "
                     "cat /tmp/memserver; grep -q 'gRPC on' /tmp/memserver")
    return said[-1]


def all_right(result, operations, most_trips=None, least_trips=None):
    """Fails unless every answer was right, and the round trips of an operation are within bounds; says what was counted."""
    found = {name: result[name] for name in ("operations", "wrong", "failed", "unknown")}
    if found != {"operations": operations, "wrong": 0, "failed": 0, "unknown": 0}:
        raise LabError(f"expected {operations} operations, none wrong, failed or unknown; found {found}: {result['first_wrong']}")
    trips = result["round_trips"]
    if most_trips and trips > most_trips or least_trips and trips < least_trips:
        raise LabError(f"expected {f'at most {most_trips}' if most_trips else f'at least {least_trips}'} round trips, found {trips:.2f}")
    return f"{operations} operations, 0 wrong, 0 failed, {trips:.2f} round trips each, {result['seconds']:.1f} s"


def steps(report, where, named, guest, ask_why):
    """Checks of which each builds on those before it. When one fails, `ask_why` goes to the guest, for its log."""
    for what, step in named:
        if not report.check(f"{where}: {what}", step):
            guest.say(ask_why)
            guest.expect(r"\[\[done", COMMAND_SECONDS)
            raise LabError("the checks after this one build on it")


def in_order(report, where, checks):
    """Runs functions in their order. What comes after one that is broken off cannot run: that is a failure, too."""
    try:
        for check in checks:
            check()
    except Exception as error:
        report.line(False, f"{where}: not all checks could run: {type(error).__name__}: {error}")
