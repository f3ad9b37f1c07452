#!/usr/bin/env python3
"""Real RoCE peers through our switch: two QEMU guests with Debian's kernel and its soft RoCE (rdma_rxe), one `fatbtree switch`.

    guest "server" 10.0.0.1 ── udp ── port 1 [ fatbtree switch ] port 2 ── udp ── guest "client" 10.0.0.2
                                                    │ P4Runtime
                                              p4runtime-shell

    scripts/interop_lab.sh                # installs what this needs, then runs it
    target/interop-lab/venv/bin/python3 scripts/interop_rxe.py --fatbtree BINARY --kernel DIR \
        --peer index_peer --verbs-lab verbs_lab --work DIR

Checks, one line each: perftest's ib_read_lat between the guests; then the conformance suite of the verbs seam, our
libibverbs implementation in both guests (rdma/examples/verbs_lab); then READs by rxe_guest/index_peer.c, ordinary ones and
index reads (rkey = 0, the key in the address) that end at the root, at a child of the fat root, and at a child of a node in
node set A; and an index read on a connection that nobody registered, which the server has to refuse. Exits with 1 when one
fails.

--kernel is a folder in which a linux-image package was unpacked. Emulation only (`-accel tcg`), no root, loopback only.
"""

import argparse
import os
import queue
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

# The generated code of p4runtime is older than the C++ parser of current protobuf releases accepts.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "scripts" / "rxe_guest"
MODULES = ["virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs"]
PROGRAMS = ["ip", "rdma", "ib_read_lat"]
IPV4 = {"server": "10.0.0.1", "client": "10.0.0.2"}
MAC = {"server": "02:00:00:00:00:01", "client": "02:00:00:00:00:02"}
PORT = {"server": 1, "client": 2}
NODE = 1024  # bytes of a node, equal to the path MTU
REGION = 8192  # as in index_peer.c
VERBS_PORT = 18601  # TCP
# Bounds, not expectations: an idle machine boots in about 10 s, one whose cores are shared by ten builds in 100 s.
BOOT_SECONDS = 240
COMMAND_SECONDS = 120


class LabError(Exception):
    """A check cannot go on; the text says what was expected and what was found."""


# --- the guests' file system -------------------------------------------------------------------------------------------


def cpio(entries):
    """A newc archive, the format of an initramfs. Entries: (path, mode, bytes); devices carry (major, minor) for bytes."""
    out = bytearray()
    for number, (path, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        major, minor = data if isinstance(data, tuple) else (0, 0)
        data = b"" if isinstance(data, tuple) else data
        name = path.encode() + b"\0"
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name), 0]
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def libraries(binary):
    """Shared libraries of a program, the loader among them."""
    text = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=True).stdout
    missing = [line.strip() for line in text.splitlines() if "not found" in line]
    if missing:
        raise LabError(f"{binary}: {missing[0]}")
    return re.findall(r"(/\S+) \(0x", text)


def program(name):
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if not path:
        raise LabError(f"{name} is missing: apt-get install iproute2 perftest busybox-static (interop_lab.sh does it)")
    return path


def module_order(kernel):
    """Module files of MODULES and all they need, each behind what it depends on."""
    folder = next((kernel / "lib" / "modules").iterdir())
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        file, _, rest = line.partition(":")
        needs[file] = rest.split()
    by_name = {Path(file).name.split(".ko")[0].replace("-", "_"): file for file in needs}
    order = []

    def add(file):
        for dependency in needs[file]:
            add(dependency)
        if file not in order:
            order.append(file)

    for name in MODULES:
        if name not in by_name:
            raise LabError(f"{folder}: expected a module {name}, found none; is this the full linux-image package?")
        add(by_name[name])
    return [folder / file for file in order]


def initramfs(kernel, ours):
    """The archive both guests boot from: busybox, the RDMA tools and what they load, kernel modules, our init and programs."""
    files = {}
    modules = module_order(kernel)
    for path in modules:
        files[f"modules/{path.name}"] = path.read_bytes()
    files["modules/order"] = "".join(path.name + "\n" for path in modules).encode()
    providers = sorted(Path("/usr/lib").glob("*/libibverbs/librxe-rdmav*.so"))
    if not providers:
        raise LabError("the soft RoCE provider of libibverbs (librxe-rdmav*.so) is missing: apt-get install ibverbs-providers")
    loaded = [*map(program, PROGRAMS), *map(str, ours), str(providers[0])]
    for path in [str(providers[0]), *(library for binary in loaded for library in libraries(binary))]:
        files[path.lstrip("/")] = Path(path).read_bytes()
    # In a folder of their own, called by full path: busybox's shell prefers its own applets, `ip` among them.
    for name in PROGRAMS:
        files[f"lab/{name}"] = Path(program(name)).read_bytes()
    for path in ours:
        files[f"lab/{path.name}"] = path.read_bytes()
    files["bin/busybox"] = Path(program("busybox")).read_bytes()
    files["etc/libibverbs.d/rxe.driver"] = b"driver rxe\n"
    files["init"] = (GUEST / "init.sh").read_bytes()
    folders = {"dev", "proc", "sys", "tmp", "sbin", "usr", "usr/bin", "usr/sbin"}
    for name in files:
        folders.update(str(parent) for parent in Path(name).parents if str(parent) != ".")
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in sorted(folders)]
    entries.append(("dev/console", stat.S_IFCHR | 0o600, (5, 1)))
    entries += [(name, stat.S_IFREG | 0o755, data) for name, data in sorted(files.items())]
    return cpio(entries)


# --- processes ---------------------------------------------------------------------------------------------------------


class Process:
    """A child process whose output lines can be waited for; everything it says goes to a log file."""

    def __init__(self, name, command, log):
        self.name, self.log = name, log
        self.lines, self.seen = queue.Queue(), []
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with open(self.log, "w", encoding="utf-8") as log:
            for raw in self.child.stdout:
                line = raw.decode("utf-8", "replace").replace("\r", "").rstrip("\n")
                log.write(line + "\n")
                log.flush()
                self.lines.put(line)
        self.lines.put(None)

    def expect(self, pattern, seconds):
        """The first line from now on that matches, as a match object; all lines passed over are in `seen`."""
        end = time.monotonic() + seconds
        self.seen = []
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                last = self.seen[-1] if self.seen else "nothing"
                raise LabError(f"{self.name}: expected /{pattern}/ within {seconds} s, last line was: {last} (see {self.log})") from None
            if line is None:
                last = self.seen[-1] if self.seen else "nothing"
                raise LabError(f"{self.name}: ended while /{pattern}/ was expected, last line was: {last} (see {self.log})")
            self.seen.append(line)
            found = re.search(pattern, line)
            if found:
                return found

    def say(self, line):
        self.child.stdin.write(line.encode() + b"\n")
        self.child.stdin.flush()

    def run(self, line, seconds=COMMAND_SECONDS):
        """Runs a command line in a guest; its output. Fails when its exit status is not 0."""
        self.say(line)
        done = self.expect(r"\[\[done (\d+)\]\]", seconds)
        output = self.seen[:-1]
        if done[1] != "0":
            raise LabError(f"{self.name}: `{line}` ended with {done[1]}: {' | '.join(output[-3:])}")
        return output

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def free_ports(count):
    """Free UDP ports on the loopback interface. All are held until all are known, so that they differ."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def start_guest(name, kernel_image, archive, local, remote, log):
    return Process(f"guest {name}", [
        "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "256", "-nodefaults", "-display", "none", "-no-reboot",
        "-serial", "stdio", "-kernel", str(kernel_image), "-initrd", str(archive),
        "-append", "console=ttyS0 quiet loglevel=3 panic=-1 no_timer_check nokaslr mitigations=off random.trust_cpu=on cryptomgr.notests",
        "-netdev", f"dgram,id=n,local.type=inet,local.host=127.0.0.1,local.port={local},"
                   f"remote.type=inet,remote.host=127.0.0.1,remote.port={remote}",
        "-device", f"virtio-net-pci,netdev=n,mac={MAC[name]},romfile=",
    ], log)


def configure_guest(guest, name):
    """Address, the other guest's MAC (the data plane drops ARP), soft RoCE; the GID index of the IPv4 address."""
    other = "client" if name == "server" else "server"
    guest.run("/lab/ip link set lo up && /lab/ip link set eth0 mtu 1500 up")
    guest.run(f"/lab/ip address add {IPV4[name]}/24 dev eth0")
    guest.run(f"/lab/ip neighbour replace {IPV4[other]} lladdr {MAC[other]} dev eth0 nud permanent")
    guest.run("/lab/rdma link add rxe0 type rxe netdev eth0")
    # The GID of a new address appears a moment later.
    output = guest.run(
        "for t in 1 2 3 4 5 6 7 8 9 10; do for i in 0 1 2 3 4 5; do "
        "grep -q ffff /sys/class/infiniband/rxe0/ports/1/gids/$i && echo gid=$i && break 2; done; sleep 1; done")
    found = [line for line in output if line.startswith("gid=")]
    if not found:
        raise LabError(f"guest {name}: expected a GID made of {IPV4[name]} on rxe0, found none")
    return int(found[0][4:])


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


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, good, what):
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'}  {what}", flush=True)

    def check(self, what, function):
        try:
            found = function()
        except Exception as error:  # a check that cannot run has failed, whatever the reason
            self.line(False, f"{what}: {type(error).__name__}: {error}")
            return False
        self.line(True, f"{what}: {found}")
        return True


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
    """The suite of verbs/src/conformance: the client guest posts, the server guest has the memory. A line per case."""
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

    match = {"src_ip": IPV4["client"], "dst_ip": IPV4["server"], "dest_qp": qpn}
    connection = tables.insert("roce_connection", match, "admit", {"rkey": rkey, "partition": 1, "root": region})
    tables.insert("partition_route", {"partition": 1}, "forward", {"port": PORT["server"]})
    tables.insert("last_hop", {"egress_port": PORT["server"]}, "strip", {})
    report.check("soft RoCE: index read, empty caches, ends at the root", lambda: expect_bytes(client, key, 0, 0))
    report.check("soft RoCE: ordinary READ on a registered connection passes untouched",
                 lambda: expect_bytes(client, region + 3 * NODE, rkey, 3 * NODE))

    # One range in the first stage, 0x0100 … 0x01ff in the key's first 16 bits: a child of the fat root at region + 2 nodes.
    tables.insert("fat_root_0", {"sub_table": 1, "slice": "0x0100..0x01ff"}, "land_0",
                  {"address": region + 2 * NODE, "partition": 1, "node_id": 0}, priority=1)
    tables.set_default("core_route", "descend", {"epoch": 1, "sub_table": 1})
    report.check("soft RoCE: index read ends at a child of the fat root", lambda: expect_bytes(client, key, 0, 2 * NODE))
    report.check("soft RoCE: index read of a key outside the fat root ends at the root",
                 lambda: expect_bytes(client, 0xFFFF_FFFF_FFFF_FFFF, 0, 0))

    # Another range leads to node 1 in node set A: two children, the second from key 0x0280… on.
    middle = 0x0280 << 48
    tables.insert("fat_root_0", {"sub_table": 1, "slice": "0x0200..0x02ff"}, "land_0",
                  {"address": region + 3 * NODE, "partition": 1, "node_id": 1}, priority=1)
    none = {f"last_{i}": 0xFFFF_FFFF_FFFF_FFFF for i in (1, 2, 3)}
    tables.insert("node_set_a.coarse", {"epoch": 1, "node_id": 1}, "compare_quarters", none)
    tables.insert("node_set_a.fine", {"epoch": 1, "node_id": 1, "quarter": 0}, "compare_children",
                  none | {"last_1": middle - 1})
    for branch, offset in ((0, 4 * NODE), (1, 5 * NODE)):
        tables.insert("node_set_a.child", {"epoch": 1, "node_id": 1, "branch": branch}, "descend_to",
                      {"offset": (region + offset) & 0xFFFF_FFFF_FFFF, "node_id": 0})
    report.check("soft RoCE: index read, key one below the pivot, ends at the first child of a cached node",
                 lambda: expect_bytes(client, middle - 1, 0, 4 * NODE))
    report.check("soft RoCE: index read, key equal to the pivot, ends at the second child of a cached node",
                 lambda: expect_bytes(client, middle, 0, 5 * NODE))

    def counters():
        found = (tables.hits("fat_root_0"), tables.hits("node_set_a.child"))
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

    report.check("soft RoCE: index read on a connection that nobody registered", refused)
    client.say("")
    client.expect(r"\[\[done 0\]\]", COMMAND_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fatbtree", type=Path, required=True, help="the fatbtree binary")
    parser.add_argument("--kernel", type=Path, required=True, help="folder with boot/vmlinuz-* and lib/modules/*, modules.dep among them")
    parser.add_argument("--peer", type=Path, required=True, help="rxe_guest/index_peer.c, compiled")
    parser.add_argument("--verbs-lab", type=Path, required=True, help="rdma/examples/verbs_lab, compiled and stripped")
    parser.add_argument("--work", type=Path, required=True, help="folder for the initramfs and the logs")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    report, processes = Report(), []
    state = {}

    def up():
        started = time.monotonic()
        images = sorted((arguments.kernel / "boot").glob("vmlinuz-*"))
        if not images:
            raise LabError(f"{arguments.kernel}/boot: expected vmlinuz-*, found none")
        archive = arguments.work / "initramfs.cpio"
        archive.write_bytes(initramfs(arguments.kernel, [arguments.peer, arguments.verbs_lab]))
        ports = free_ports(4)
        udp = {"server": ports[:2], "client": ports[2:]}
        command = [str(arguments.fatbtree), "switch", "--grpc", "127.0.0.1:0", "--device-id", "1", "--seconds", "700"]
        for name, (ours, theirs) in udp.items():
            command += ["--port", f"{PORT[name]}=127.0.0.1:{ours},127.0.0.1:{theirs}"]
        switch = Process("switch", command, arguments.work / "switch.log")
        processes.append(switch)
        grpc = switch.expect(r"controller on ([0-9.]+:\d+)", 20)[1]
        guests = {}
        for name, (ours, theirs) in udp.items():
            guests[name] = start_guest(name, images[0], archive, theirs, ours, arguments.work / f"{name}.log")
            processes.append(guests[name])
        state["tables"] = Tables(grpc)
        for name in guests:
            state["tables"].insert("ipv4_route", {"dst_ip": f"{IPV4[name]}/32"}, "forward", {"port": PORT[name]})
        for guest in guests.values():
            guest.expect(r"\[\[ready\]\]", BOOT_SECONDS)
        state["gid"] = {name: configure_guest(guest, name) for name, guest in guests.items()}
        state.update(guests)
        return f"{images[0].name}, {archive.stat().st_size >> 20} MiB initramfs, {time.monotonic() - started:.0f} s"

    try:
        if report.check("soft RoCE: two guests, switch programmed", up):
            server, client, tables = state["server"], state["client"], state["tables"]
            if report.check("soft RoCE: ib_read_lat through the switch", lambda: read_latency(server, client, state["gid"])):
                try:
                    conformance(report, server, client)
                    index_reads(report, tables, server, client)
                except Exception as error:  # what comes behind a broken step cannot run: that is a failure, too
                    report.line(False, f"soft RoCE: not all checks could run: {type(error).__name__}: {error}")
    finally:
        if "tables" in state:
            state["tables"].close()
        for process in processes:
            process.stop()
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
