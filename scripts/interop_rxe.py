#!/usr/bin/env python3
"""Real RoCE peers through our switches: two QEMU guests with Debian's kernel and its soft RoCE (rdma_rxe).

    guest "server" 192.168.7.1 ── udp ── port 1 [ fatbtree switch ] port 2 ── udp ── guest "client" 192.168.7.2
                                                       │ P4Runtime                        │ eth1, eth2: see rxe_lab/tree.py
                                                 p4runtime-shell
    port 3 of the switch: rping on our software NIC 192.168.7.3, see rxe_lab/connections.py

    scripts/interop_lab.sh                # installs what this needs, then runs it
    target/interop-lab/venv/bin/python3 scripts/interop_rxe.py --fatbtree BINARY --kernel DIR --peer index_peer \
        --verbs-lab verbs_lab --memory-server udp_memserver --controller lab_controller --rping rping --work DIR

Checks, one line each: perftest's ib_read_lat between the guests; then the conformance suite of the verbs seam, our
libibverbs implementation in both guests (fabric/ibverbs/examples/verbs_lab); then READs by rxe_guest/index_peer.c, ordinary ones and
index reads (an rkey below 256, the key in the address) that end at the root, at a child of the fat root, at a child of a node in
node set A, and at a slice of such a child; and an index read on an unregistered connection, which the server has to refuse. Then the tree client in
the client guest looks keys up on our memory server, through five switches (rxe_lab/tree.py). Programs of rdma-core connect by RDMA CM to
our software NIC, and it to them (rxe_lab/connections.py). Exits with 1 when one fails.

--kernel is a folder in which a linux-image package was unpacked. Emulation only (`-accel tcg`), no root, loopback only.
"""

import argparse
import os
import re
import sys
from pathlib import Path

# The generated code of p4runtime is older than the C++ parser of current protobuf releases accepts.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

from rxe_lab.connections import SOFT_IPV4, SOFT_PORT, connections
from rxe_lab.guests import (COMMAND_SECONDS, ROOT, LabError, Process, Report, configure_card, datagram_card,
                            forwarding_card, free_ports, initramfs, kernel_image, start_guest)
from rxe_lab.tree import GUEST_GRPC, TreeNetwork, tree_lookups

IPV4 = {"server": "192.168.7.1", "client": "192.168.7.2"}
MAC = {"server": "02:00:00:00:00:01", "client": "02:00:00:00:00:02"}
PORT = {"server": 1, "client": 2}
NODE = 1024  # bytes of a node, equal to the path MTU
REGION = 8192  # as in index_peer.c
VERBS_PORT = 18601  # TCP
IN_FLIGHT_PORT = 4792  # UDP, of index packets


# --- the switch's tables -----------------------------------------------------------------------------------------------


class Tables:
    """Entries of the data plane, by the dotted suffix of their table's name, over p4runtime-shell."""

    def __init__(self, grpc):
        import google.protobuf.text_format
        import p4runtime_sh.shell as shell
        from p4.config.v1 import p4info_pb2

        build = ROOT / "p4" / "build"
        p4info = build / "fatbtree_v1model.p4info.txtpb"
        self.shell = shell
        self.info = google.protobuf.text_format.Parse(p4info.read_text(), p4info_pb2.P4Info())
        shell.setup(device_id=1, grpc_addr=grpc, election_id=(0, 1), verbose=False,
                    config=shell.FwdPipeConfig(str(p4info), str(build / "fatbtree_v1model.json")))

    def close(self):
        self.shell.teardown()

    def _table(self, suffix):
        found = [table for table in self.info.tables if ("." + table.preamble.name).endswith("." + suffix)]
        if len(found) != 1:
            raise LabError(f"P4Info: expected one table {suffix}, found {[t.preamble.name for t in found]}")
        return found[0]

    def _action(self, table, name):
        ids = {reference.id for reference in table.action_refs}
        found = [a.preamble.name for a in self.info.actions
                 if a.preamble.id in ids and a.preamble.name.split(".")[-1] == name]
        if len(found) != 1:
            raise LabError(f"P4Info: expected one action {name} of {table.preamble.name}, found {found}")
        return found[0]

    def entry(self, suffix, match, action, params, priority=0):
        table = self._table(suffix)
        entry = self.shell.TableEntry(table.preamble.name)(action=self._action(table, action))
        for key, value in match.items():
            entry.match[key] = str(value)
        for key, value in params.items():
            entry.action[key] = str(value)
        entry.priority = priority
        return entry

    def insert(self, *arguments, **more):
        entry = self.entry(*arguments, **more)
        entry.insert()
        return entry

    def set_default(self, suffix, action, params):
        table = self._table(suffix)
        entry = self.shell.TableEntry(table.preamble.name)(action=self._action(table, action), is_default=True)
        for key, value in params.items():
            entry.action[key] = str(value)
        entry.modify()

    def hits(self, suffix):
        """Sum of a table's direct counters, in packets."""
        counters = [c.preamble.name for c in self.info.direct_counters if c.direct_table_id == self._table(suffix).preamble.id]
        total = 0
        for entry in self.shell.DirectCounterEntry(counters[0]).read():
            total += entry.packet_count
        return total


# --- the checks --------------------------------------------------------------------------------------------------------


def pattern(offset, length):
    """What index_peer's server keeps at these bytes of its region."""
    return bytes((31 * i + 17 * (i >> 8) + 5) & 0xFF for i in range(offset, offset + length))


def read_latency(server, client, gid):
    """perftest in both guests: 100 READs of 1024 bytes. Its table's row."""
    options = "-d rxe0 -F -n 100 -s 1024 -m 1024"
    server.say(f"/lab/ib_read_lat {options} -x {gid['server']}")
    server.expect("Waiting for client", COMMAND_SECONDS)
    output = client.run(f"/lab/ib_read_lat {options} -x {gid['client']} {IPV4['server']}")
    done = server.expect(r"\[\[done (\d+)\]\]", COMMAND_SECONDS)
    rows = [line.split() for line in output if re.match(r"\s*1024\s+100\s", line)]
    if done[1] != "0" or len(rows) != 1 or len(rows[0]) < 6:
        raise LabError(f"expected a row '1024 100 …' in ib_read_lat's table, found: {' | '.join(output[-4:])}")
    return f"100 READs of 1024 bytes, minimum {rows[0][2]} us, typical {rows[0][4]} us (emulated machines: not a performance figure)"


def conformance(report, server, client):
    """The suite of fabric/verbs/src/conformance: the client guest posts, the server guest has the memory. A line per case."""
    server.run(f"/lab/verbs_lab responder rxe0 {IPV4['server']}:{VERBS_PORT} >/tmp/responder 2>&1 & "
               "for t in $(seq 100); do grep -q ready /tmp/responder && break; sleep 0.1; done; grep ready /tmp/responder")
    client.say(f"/lab/verbs_lab conformance rxe0 {IPV4['server']}:{VERBS_PORT}")
    checks = 0
    while True:
        found = client.expect(r"^(ok|FAIL) +(.*)|^(\d+) checks, (\d+) failed|^(verbs_lab: .*)|\[\[done", COMMAND_SECONDS)
        if found[1]:
            checks += 1
            report.line(found[1] == "ok", f"verbs on soft RoCE: {found[2]}")
        elif found[3]:
            break
        else:
            raise LabError(f"expected the suite's last line, found: {found[5] or 'its end'}")
    if int(found[3]) != checks or checks == 0:
        raise LabError(f"expected a line for each of {found[3]} checks, found {checks}")
    client.expect(r"\[\[done \d+\]\]", COMMAND_SECONDS)
    server.run("kill $!; cat /tmp/responder")


def connect_peers(server, client):
    """A queue pair between the guests; the server's number of it."""
    client.say(f"/lab/index_peer client {IPV4['server']}")
    qpn = int(server.expect(r"connection qpn=(\d+)", COMMAND_SECONDS)[1])
    client.expect(r"connection qpn=(\d+)", COMMAND_SECONDS)
    return qpn


def read(client, va, rkey, length=NODE):
    """Posts one READ in the client guest: its completion status, its text and the bytes that came."""
    client.say(f"{va:#x} {rkey:#x} {length}")
    found = client.expect(r"read status=(\d+) \((.*)\) data=([0-9a-f]*)", COMMAND_SECONDS)
    return int(found[1]), found[2], bytes.fromhex(found[3])


def expect_bytes(client, va, rkey, offset):
    status, text, data = read(client, va, rkey)
    if status != 0:
        raise LabError(f"READ of {va:#x} with rkey {rkey:#x}: expected success, found status {status} ({text})")
    expected = pattern(offset, NODE)
    if data != expected:
        where = [o for o in range(0, REGION - NODE + 1, NODE) if data == pattern(o, NODE)]
        raise LabError(f"READ of {va:#x}: expected the {NODE} bytes at region + {offset}, found those at "
                       f"{[f'region + {o}' for o in where] or data[:16].hex() + ' …'}")
    return f"{NODE} right bytes from region + {offset}"


def index_reads(report, tables, server, client):
    server.say("/lab/index_peer server")
    found = server.expect(r"region rkey=0x([0-9a-f]+) address=0x([0-9a-f]+)", COMMAND_SECONDS)
    rkey, region = int(found[1], 16), int(found[2], 16)
    qpn = connect_peers(server, client)
    key = 0x0123456789ABCDEF
    report.check("soft RoCE: ordinary READ by our verbs program", lambda: expect_bytes(client, region + NODE, rkey, NODE))

    match = {"port": PORT["client"], "src_mac": int(MAC["client"].replace(":", ""), 16),
             "src_ip": IPV4["client"], "dst_ip": IPV4["server"], "dest_qp": qpn}
    admit = {"rkey": rkey, "partition": 1, "root": region, "udp_port": IN_FLIGHT_PORT, "mtu": NODE}
    connection = tables.insert("roce_connection", match, "admit", admit)
    tables.insert("partition_route", {"partition": 1}, "forward", {"port": PORT["server"]})
    tables.insert("last_hop", {"egress_port": PORT["server"]}, "strip", {"to_roce": (4791 - IN_FLIGHT_PORT) % 65536})
    report.check("soft RoCE: index read, empty caches, ends at the root", lambda: expect_bytes(client, key, 0, 0))
    report.check("soft RoCE: ordinary READ on a registered connection passes untouched",
                 lambda: expect_bytes(client, region + 3 * NODE, rkey, 3 * NODE))

    # One range in the first stage, 0x0100 … 0x01ff in the key's first 16 bits: a child of the fat root at region + 2 nodes.
    tables.insert("fat_root_0", {"sub_table": 1, "slice": "0x0100..0x01ff"}, "land_0",
                  {"address": region + 2 * NODE, "partition": 1, "kind": 0}, priority=1)
    tables.set_default("core_route", "descend", {"epoch": 1, "sub_table": 1})
    report.check("soft RoCE: index read ends at a child of the fat root", lambda: expect_bytes(client, key, 0, 2 * NODE))
    report.check("soft RoCE: index read of a key outside the fat root ends at the root",
                 lambda: expect_bytes(client, 0xFFFF_FFFF_FFFF_FFFF, 0, 0))

    # Another range leads to a node in node set A: two children one after the other, the second from key 0x0280… on.
    middle = 0x0280 << 48
    tables.insert("fat_root_0", {"sub_table": 1, "slice": "0x0200..0x02ff"}, "land_0",
                  {"address": region + 3 * NODE, "partition": 1, "kind": 1}, priority=1)
    none = {f"last_{i}": 0xFFFF_FFFF for i in (1, 2, 3)}
    tables.insert("node_set_a.coarse", {"epoch": 1, "address": region + 3 * NODE}, "quarter_by_high",
                  none | {"slot": 1, "first_child": (region + 4 * NODE) & 0xFFFF_FFFF_FFFF, "stride": NODE // 64, "kind": 2})
    tables.insert("node_set_a.fine", {"epoch": 1, "slot": 1, "quarter": 0}, "child_by_high",
                  none | {"last_1": (middle >> 32) - 1})
    for branch in (0, 1):
        tables.insert("node_set_a.run", {"stride": NODE // 64, "branch": branch}, "descend_by", {"distance": branch * NODE})
    report.check("soft RoCE: index read, key one below the pivot, ends at the first child of a cached node",
                 lambda: expect_bytes(client, middle - 1, 0, 4 * NODE))
    report.check("soft RoCE: index read, key equal to the pivot, ends at the second child of a cached node",
                 lambda: expect_bytes(client, middle, 0, 5 * NODE))
    # The rkey's upper five bits are the line at which the slice begins: 3, or the last one, in lines of 64 bytes.
    for line in (3, 31):
        report.check(f"soft RoCE: index read of a slice, line {line}, ends inside of the leaf",
                     lambda line=line: expect_bytes(client, middle, line << 3, 5 * NODE + 64 * line))
    report.check("soft RoCE: index read of a slice that ends at the root brings the root",
                 lambda: expect_bytes(client, 0xFFFF_FFFF_FFFF_FFFF, 3 << 3, 0))
    report.check("soft RoCE: index read of a slice that ends at an inner node brings the node",
                 lambda: expect_bytes(client, key, 3 << 3, 2 * NODE))

    def counters():
        found = (tables.hits("fat_root_0"), tables.hits("node_set_a.coarse"))
        if found[0] < 3 or found[1] < 2:
            raise LabError(f"expected at least 3 hits in the fat root and 2 in the node set, found {found}")
        return f"{found[0]} hits in the fat root, {found[1]} in the node set, read by p4runtime-shell"

    report.check("P4Runtime: direct counters have counted these reads", counters)

    connection.delete()

    def refused():
        status, text, _ = read(client, key, 0)
        if status != 10:  # IBV_WC_REM_ACCESS_ERR
            raise LabError(f"expected status 10 (remote access error), found {status} ({text})")
        return f"refused by the server's kernel: {text}"

    report.check("soft RoCE: index read on an unregistered connection", refused)
    client.say("")
    client.expect(r"\[\[done 0\]\]", COMMAND_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fatbtree", type=Path, required=True, help="the fatbtree binary")
    parser.add_argument("--kernel", type=Path, required=True, help="folder with boot/vmlinuz-* and lib/modules/*, modules.dep among them")
    parser.add_argument("--peer", type=Path, required=True, help="rxe_guest/index_peer.c, compiled")
    parser.add_argument("--verbs-lab", type=Path, required=True, help="fabric/ibverbs/examples/verbs_lab, compiled and stripped")
    parser.add_argument("--memory-server", type=Path, required=True, help="structures/blink/host/examples/udp_memserver, compiled")
    parser.add_argument("--controller", type=Path, required=True, help="controller/examples/lab_controller, compiled")
    parser.add_argument("--rping", type=Path, required=True, help="fabric/soft-nic/examples/rping, compiled")
    parser.add_argument("--work", type=Path, required=True, help="folder for the initramfs and the logs")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    report, processes = Report(), []
    state = {}

    def up():
        image = kernel_image(arguments.kernel)
        archive = arguments.work / "initramfs.cpio"
        archive.write_bytes(initramfs(arguments.kernel, [arguments.peer, arguments.verbs_lab]))
        ports = free_ports(6)
        udp = {"server": ports[:2], "client": ports[2:4]}
        state["soft"] = ports[4:]
        command = [str(arguments.fatbtree), "switch", "--grpc", "127.0.0.1:0", "--device-id", "1", "--seconds", "700"]
        for name, (ours, theirs) in udp.items():
            command += ["--port", f"{PORT[name]}=127.0.0.1:{ours},127.0.0.1:{theirs}"]
        command += ["--port", "{}=127.0.0.1:{},127.0.0.1:{}".format(SOFT_PORT, *state["soft"])]
        switch = Process("switch", command, arguments.work / "switch.log")
        processes.append(switch)
        grpc = switch.expect(r"controller on ([0-9.]+:\d+)", 20)[1]
        tree = TreeNetwork(arguments, processes)
        state["tree"] = tree
        cards = {name: [datagram_card(0, MAC[name], theirs, ours)] for name, (ours, theirs) in udp.items()}
        cards["client"] += [tree.client_card(1), forwarding_card(2, [(GUEST_GRPC, tree.grpc_port)])]
        guests = {}
        for name in udp:
            guests[name] = start_guest(name, image, archive, cards[name], arguments.work / f"{name}.log")
            processes.append(guests[name])
        programmed = tree.program(arguments, processes)
        state["tables"] = Tables(grpc)
        for name in guests:
            state["tables"].insert("ipv4_route", {"dst_ip": f"{IPV4[name]}/32"}, "forward", {"port": PORT[name]})
        state["tables"].insert("ipv4_route", {"dst_ip": f"{SOFT_IPV4}/32"}, "forward", {"port": SOFT_PORT})
        for guest in guests.values():
            guest.ready()
        other = {"server": "client", "client": "server"}
        state["gid"] = {name: configure_card(guest, 0, IPV4[name], (IPV4[other[name]], MAC[other[name]]))
                        for name, guest in guests.items()}
        state.update(guests)
        return f"{image.name}, {archive.stat().st_size >> 20} MiB initramfs; {programmed}"

    try:
        if report.check("soft RoCE: two guests, switches programmed", up):
            server, client, tables = state["server"], state["client"], state["tables"]
            if report.check("soft RoCE: ib_read_lat through the switch", lambda: read_latency(server, client, state["gid"])):
                try:
                    conformance(report, server, client)
                    index_reads(report, tables, server, client)
                    connections(report, client, (IPV4["client"], MAC["client"]), state["soft"], arguments)
                    server.stop()  # its share of the processor is of use elsewhere
                    tree_lookups(report, state["tree"], client)
                except Exception as error:  # what comes after a broken step cannot run: that is a failure, too
                    report.line(False, f"soft RoCE: not all checks could run: {type(error).__name__}: {error}")
    finally:
        if "tables" in state:
            state["tables"].close()
        for process in processes:
            process.stop()
        if "tree" in state:
            state["tree"].relay.stop()
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
