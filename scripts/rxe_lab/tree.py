"""The tree client on soft RoCE against our memory server, index reads through our switches.

    guest "client", rxe1, 10.1.0.2                            memory server (udp_memserver), software NIC, 10.0.0.2
          │ eth1                 eth2 │                                │                       │ gRPC, TCP
      udp │                           └── QEMU user network ── TCP ────│───────────────────────┘
          │                                                        udp │ relay: counts, and loses frames when told to
       edge-1-0 ── agg-1-0 ── core-0 ── agg-0-0 ── edge-0-0 ───────────┘
               five processes `fatbtree switch`, the links between them UDP ports
                          │ P4Runtime
                    lab_controller: programs them, plans from the memory server's snapshot, registers connections

The network is a FatTree with k = 2: first hop, core, and last hop are different switches, as in a real one.
"""

import random
import re
import select
import socket
import threading
import time

from .guests import COMMAND_SECONDS, LabError, Process, configure_card, datagram_card, free_ports

CLIENT = ("10.1.0.2", "02:00:0a:01:00:02")
SERVER = ("10.0.0.2", "02:00:0a:00:00:02")
# Where the guest finds the memory server's gRPC.
GUEST_GRPC = ("10.0.2.100", 50051)
# Switch numbers of a FatTree with k = 2, and what is wired to what: (switch, port).
SWITCHES = ["core-0", "agg-0-0", "agg-1-0", "edge-0-0", "edge-1-0"]
LINKS = [(("core-0", 0), ("agg-0-0", 1)), (("core-0", 1), ("agg-1-0", 1)),
         (("agg-0-0", 0), ("edge-0-0", 1)), (("agg-1-0", 0), ("edge-1-0", 1))]
KEYS = 100_000
SECONDS = 600  # no process outlives this


class Relay:
    """A cable between two pairs of UDP ports. It looks at the READs that pass towards the second end, and loses frames."""

    def __init__(self, first, second):
        self.lose = 0  # of 1000 frames, in either direction
        self.mute = False  # everything is lost that comes from the second end
        self.lost = self.reads = self.keyed = self.elsewhere = 0
        self.addresses = {}
        self.queue_pairs = set()
        self.random = random.Random(7)
        self.running = True
        self.ends = []
        for here, there in (first, second):
            end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            end.bind(("127.0.0.1", here))
            self.ends.append((end, ("127.0.0.1", there)))
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()

    def _carry(self):
        sockets = [end for end, _ in self.ends]
        while self.running:
            for ready in select.select(sockets, [], [], 0.2)[0]:
                frame = ready.recv(65536)
                towards_server = ready is sockets[0]
                if self.mute and not towards_server or self.random.randrange(1000) < self.lose:
                    self.lost += 1
                    continue
                if towards_server:
                    self._look(frame)
                end, peer = self.ends[towards_server]
                end.sendto(frame, peer)

    def _look(self, frame):
        """Ethernet 14, IPv4 20, UDP 8, BTH 12 bytes; then the RETH: address 8, rkey 4. Opcode 12 is a READ request."""
        if len(frame) > 70 and frame[36:38] == (4791).to_bytes(2, "big") and frame[42] == 12:
            self.reads += 1
            self.keyed += frame[62:65] == b"\0\0\0"
            # By queue pair and PSN: the same READ, sent again after a reload, may be rewritten to another node.
            self.queue_pairs.add(frame[47:50])
            name, address = frame[47:50] + frame[51:54], frame[54:62]
            self.elsewhere += self.addresses.setdefault(name, address) != address

    def stop(self):
        self.running = False
        self.thread.join(2)
        for end, _ in self.ends:
            end.close()


class TreeNetwork:
    """Switches, memory server and controller, running; the guest belongs to the caller."""

    def __init__(self, arguments, processes):
        work = arguments.work
        wires = {}
        for one, other in LINKS:
            a, b = free_ports(2)
            wires[one], wires[other] = (a, b), (b, a)
        edge, relay_first, relay_second, server, client_edge, self.guest_port = free_ports(6)
        wires["edge-0-0", 0] = (edge, relay_first)
        wires["edge-1-0", 0] = (client_edge, self.guest_port)
        self.client_edge = client_edge
        self.relay = Relay((relay_first, edge), (relay_second, server))

        self.server = Process("memory server", [
            str(arguments.memory_server), "--ip", SERVER[0], "--port", f"127.0.0.1:{server},127.0.0.1:{relay_second}",
            "--keys", str(KEYS), "--seconds", str(SECONDS)], work / "memory-server.log")
        processes.append(self.server)
        self.switches = []
        for number, name in enumerate(SWITCHES, 1):
            ports = [option for (switch, port), (local, remote) in wires.items() if switch == name
                     for option in ("--port", f"{port}=127.0.0.1:{local},127.0.0.1:{remote}")]
            switch = Process(f"switch {name}", [
                str(arguments.fatbtree), "switch", "--grpc", "127.0.0.1:0", "--device-id", str(number),
                "--seconds", str(SECONDS), *ports], work / f"switch-{name}.log")
            self.switches.append(switch)
            processes.append(switch)
        ready = self.server.expect(r"^ready grpc=([0-9.]+:(\d+)) keys=\d+ levels=(\d+)$", 60)
        self.grpc, self.grpc_port, self.levels = ready[1], int(ready[2]), int(ready[3])

    def program(self, arguments, processes):
        """Starts the controller, which programs the switches; what it says."""
        cluster = ["[network]", "k = 2"]
        for number, (name, switch) in enumerate(zip(SWITCHES, self.switches), 1):
            grpc = switch.expect(r"controller on ([0-9.]+:\d+)", 20)[1]
            cluster += ["[[switch]]", f'name = "{name}"', f'p4runtime = "{grpc}"', f"device_id = {number}"]
        cluster += ["[[memory_server]]", 'host = "host-0-0-0"', f'grpc = "{self.grpc}"', "[[client]]", 'host = "host-1-0-0"']
        file = arguments.work / "cluster.toml"
        file.write_text("\n".join(cluster) + "\n")
        self.controller = Process("controller", [str(arguments.controller), str(file)], arguments.work / "controller.log")
        processes.append(self.controller)
        return self.answer("")

    def client_card(self, number):
        return datagram_card(number, CLIENT[1], self.guest_port, self.client_edge)

    def answer(self, line):
        """What the controller says, to a line if there is one."""
        if line:
            self.controller.say(line)
        found = self.controller.expect(r"^(ok|error)[ :]*(.*)", COMMAND_SECONDS)
        if found[1] != "ok":
            raise LabError(f"controller: {line}: {found[2]}")
        return found[2]

    def follow(self, opened):
        """Hands the memory server's events on to the controller, until `opened` connections have been opened; these."""
        hops = []
        while len(hops) < opened:
            found = self.server.expect(r"^(opened|closed) client=(\S+) server=\S+ queue_pair=(\d+) partition=(\d+) "
                                       r"root=(\d+) mtu=(\d+) rkey=(\d+)$", COMMAND_SECONDS)
            what, client, queue_pair, partition, root, mtu, rkey = found.groups()
            if what == "closed":
                self.answer(f"unregister {client} {partition} {queue_pair}")
            else:
                hops.append(f"{client} {partition} {queue_pair} {rkey} {root} {mtu}")
        return hops


class LookupClient:
    """`verbs_lab lookup` in the guest."""

    def __init__(self, guest):
        self.guest = guest
        guest.say(f"/lab/verbs_lab lookup rxe1 http://{GUEST_GRPC[0]}:{GUEST_GRPC[1]}")

    def expect(self, pattern):
        found = self.guest.expect(rf"{pattern}|^verbs_lab: .*|\[\[done \d+\]\]", COMMAND_SECONDS)
        if not re.search(pattern, found[0]):
            raise LabError(f"verbs_lab lookup: expected /{pattern}/, found: {' | '.join(self.guest.seen[-3:])}")
        return found

    def counts(self, line=None):
        """The counts of what it was told to do, as a dictionary."""
        if line:
            self.guest.say(line)
        found = self.expect(r"^lookups=.*")
        return {name: float(value) for name, value in (word.split("=") for word in found[0].split())}

    def said(self, pattern):
        """Lines before the counts that match."""
        return [line for line in self.guest.seen if re.search(pattern, line)]


def expect_counts(counts, **expected):
    """Fails unless the counts are these."""
    wrong = {name: (counts.get(name, 0), value) for name, value in expected.items() if counts.get(name, 0) != value}
    if wrong:
        raise LabError(", ".join(f"expected {name}={value:g}, found {found:g}" for name, (found, value) in wrong.items())
                       + f" in {counts}")


def all_right(counts, lookups):
    """Every answer is right: three of four keys are there."""
    expect_counts(counts, lookups=lookups, found=lookups * 3 // 4, not_found=lookups // 4, wrong=0, failed=0)


def tree_lookups(report, network, guest):
    state = {}

    def connect():
        configure_card(guest, 1, CLIENT[0], SERVER, route="10.0.0.0/16")
        guest.run("/lab/ip link set eth2 up && /lab/ip address add 10.0.2.15/24 dev eth2")
        state["client"] = LookupClient(guest)
        state["client"].expect(r"^server keys=(\d+)")
        network.follow(2)
        return f"{KEYS} keys, {network.levels} levels"

    def ordinary():
        counts = state["client"].counts("walk 400")
        all_right(counts, 400)
        expect_counts(counts, index_reads=0, broken=0)
        state["ordinary"] = counts["per_lookup"]
        return f"400 lookups, {counts['per_lookup']:.2f} round trips each"

    def refused():
        client = state["client"]
        keyed = network.relay.keyed
        guest.say("registered")  # which is not true
        client.expect("^registered$")
        counts = client.counts("index 40")
        all_right(counts, 40)
        expect_counts(counts, broken=2, refused=2)
        diagnosed = client.said("^broke lane=.*no switch has registered")
        if len(diagnosed) != 2:
            raise LabError(f"expected both connections to be called unregistered, found {client.said('^broke')}")
        if network.relay.keyed == keyed:
            raise LabError("expected index reads at the server's port, found none")
        return (f"refused by the memory server, called unregistered, connected anew; "
                f"40 lookups right, {counts['restarts']:.0f} of them begun again")

    def empty_caches():
        client = state["client"]
        for hop in network.follow(2):
            network.answer(f"register {hop}")
        guest.say("registered")
        client.expect("^registered$")
        counts = client.counts("index 40")
        all_right(counts, 40)
        expect_counts(counts, index_reads=40, broken=0, fallbacks=0, **{f"landed_{network.levels - 1}": 40})
        return "40 lookups right, each index read ended at the root"

    def rewritten():
        client = state["client"]
        planned = network.answer("plan 4 8,64,0,128,0")
        before = network.relay.reads, network.relay.keyed
        counts = client.counts("index 400")
        all_right(counts, 400)
        expect_counts(counts, index_reads=400, broken=0, fallbacks=0, unregistered=0)
        reads, keyed = network.relay.reads - before[0], network.relay.keyed - before[1]
        if keyed or reads < counts["round_trips"]:
            raise LabError(f"expected {counts['round_trips']:.0f} READs at the server's port, none with an rkey below 256; "
                           f"found {reads}, {keyed} of them with such an rkey")
        if not counts["per_lookup"] < state["ordinary"]:
            raise LabError(f"expected fewer round trips than {state['ordinary']}, found {counts['per_lookup']}")
        landed = ", ".join(f"{counts[name]:.0f} on level {name[-1]}" for name in sorted(counts) if name.startswith("landed_"))
        return (f"400 lookups, {counts['per_lookup']:.2f} round trips each instead of {state['ordinary']:.2f}; "
                f"index reads landed {landed}; {planned}")

    def threads():
        client = state["client"]
        first = client.counts("threads 3 80")
        said = client.said("^RdmaContext")
        for counts in (first, client.counts(), client.counts()):
            all_right(counts, 80)
        if not any(re.search(r"threads: 1, .*doorbells: the driver's$", line) for line in said):
            raise LabError(f"expected one context, and no thread domains, found {said}")
        network.follow(6)
        return "3 threads on one device context, 80 lookups each; soft RoCE has no thread domains, and it is said"

    def counters():
        found = network.answer("counters")
        hits = {name: int(value) for name, value in (word.split("=") for word in found.split())}
        for name in ("fat_root", "core-0", "agg-0-0"):
            if hits.get(name, 0) < 400:
                raise LabError(f"expected at least 400 hits in {name}, found: {found}")
        if not 0 < hits.get("edge-0-0", 0):
            raise LabError(f"expected hits in edge-0-0, found: {found}")
        return f"{found}"

    def one_by_one():
        counts = state["client"].counts("get 40")
        expect_counts(counts, lookups=40, found=40, wrong=0, failed=0, index_reads=40, broken=0)
        return f"40 values, {counts['per_lookup']:.2f} round trips each"

    def reload_and_loss():
        relay = network.relay
        reads = relay.reads
        relay.mute = True
        try:
            guest.say("index 200")
            end = time.monotonic() + COMMAND_SECONDS
            while relay.reads < reads + 8 and time.monotonic() < end:
                time.sleep(0.01)
            loaded = network.answer("plan 4 0,0,0,0,0")  # every index read ends elsewhere now
            relay.lose, relay.mute = 20, False
            counts = state["client"].counts()
        finally:
            relay.lose, relay.mute = 0, False
        all_right(counts, 200)
        # Where the reload takes longer than the client's patience, a connection breaks instead.
        if not relay.lost or not (relay.elsewhere or counts["broken"]):
            raise LabError(f"expected lost frames, and READs sent again to another address; found {relay.lost}, {relay.elsewhere}")
        return (f"200 lookups right, {relay.lost} frames lost, {relay.elsewhere} READs sent again to another address, "
                f"{counts['broken']:.0f} connections broken; {loaded}")

    def server_dies():
        client = state["client"]
        network.server.child.kill()
        guest.say("expect failures")
        client.expect("^failures are expected$")
        counts = client.counts("index 8")
        expect_counts(counts, lookups=8, failed=8, wrong=0)
        lost = client.said("^lost lane=")
        if not lost:
            raise LabError(f"expected the client to say that the server is lost, found {guest.seen}")
        guest.say("end")
        client.guest.expect(r"\[\[done 0\]\]", COMMAND_SECONDS)
        return lost[0]

    steps = [
        ("a session with the memory server, its software NIC behind five switches", connect),
        ("lookups by ordinary READs", ordinary),
        ("lookups by several threads", threads),
        ("index reads without registration", refused),
        ("index reads with empty caches", empty_caches),
        ("index reads rewritten by our switches", rewritten),
        ("the switches' counters have seen them", counters),
        ("values one by one, by Client::get", one_by_one),
        ("a reload, and frames lost meanwhile", reload_and_loss),
        ("the memory server is killed, and the client says so", server_dies),
    ]
    for what, step in steps:
        if not report.check(f"tree on soft RoCE: {what}", step):
            raise LabError("the checks after this one build on it")
