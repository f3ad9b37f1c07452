"""What the lab's checks share: guests (QEMU, Debian's kernel, soft RoCE), processes whose output is waited for, a line per check."""

import os
import queue
import re
import shutil
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GUEST = ROOT / "scripts" / "rxe_guest"
MODULES = ["virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs", "8021q"]
PROGRAMS = ["ip", "rdma", "ib_read_lat", "ib_write_bw", "ibv_rc_pingpong", "rping", "ucmatose"]
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
        raise LabError(f"{name} is missing: apt-get install iproute2 perftest ibverbs-utils rdmacm-utils busybox-static (interop_lab.sh does it)")
    return path


def module_order(kernel):
    """Module files of MODULES and all they need, each after what it depends on."""
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


def initramfs(kernel, ours, texts=None):
    """The archive guests boot from: busybox, the RDMA tools and what they load, kernel modules, our init and programs; beside these
    `texts`, by their names."""
    files = {f"lab/{name}": text.encode() for name, text in (texts or {}).items()}
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

    def ready(self, seconds=BOOT_SECONDS):
        """Waits until a guest has booted; one whose kernel does not take a module powers off."""
        self.expect(r"\[\[ready\]\]", seconds)

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def free_ports(count, kind=socket.SOCK_DGRAM):
    """Free UDP ports of the loopback interface, or TCP ports. All are held until all are known, so that they differ."""
    held = [socket.socket(socket.AF_INET, kind) for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def kernel_image(kernel):
    """The kernel that guests boot, of the folder `--kernel`."""
    images = sorted((kernel / "boot").glob("vmlinuz-*"))
    if not images:
        raise LabError(f"{kernel}/boot: expected vmlinuz-*, found none")
    return images[0]


def datagram_card(number, mac, local, remote):
    """QEMU's options for a card whose cable is a pair of UDP ports, one Ethernet frame a datagram."""
    return [
        "-netdev", f"dgram,id=n{number},local.type=inet,local.host=127.0.0.1,local.port={local},"
                   f"remote.type=inet,remote.host=127.0.0.1,remote.port={remote}",
        "-device", f"virtio-net-pci,netdev=n{number},mac={mac},romfile=",
    ]


def forwarding_card(number, to_host, to_guest=()):
    """A card on which nothing is reachable but TCP addresses: each connection to one of `to_host`, pairs of an address and a port of this
    machine, becomes one to that port; each to a port of this machine of `to_guest`, one to that port of the guest, 10.0.2.15."""
    forwards = [f"guestfwd=tcp:{host}:{guest_port}-cmd:busybox nc 127.0.0.1 {port}" for (host, guest_port), port in to_host]
    forwards += [f"hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:{guest_port}" for port, guest_port in to_guest]
    return [
        "-netdev", f"user,id=n{number},restrict=on,{','.join(forwards)}",
        "-device", f"virtio-net-pci,netdev=n{number},romfile=",
    ]


def start_guest(name, kernel_image, archive, cards, log, megabytes=256):
    """A guest with these cards: eth0, eth1, ... in this order."""
    # It has one processor. QEMU 7.2 leaves memory barriers out of code for a machine that can have no second one, though its devices
    # run on other threads: now and then a card misses that its queue is no longer empty, and sends nothing for ever after.
    return Process(f"guest {name}", [
        "qemu-system-x86_64", "-accel", "tcg", "-smp", "1,maxcpus=2", "-cpu", "max", "-m", str(megabytes),
        "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", str(kernel_image), "-initrd", str(archive),
        "-append", "console=ttyS0 quiet loglevel=3 panic=-1 no_timer_check nokaslr mitigations=off random.trust_cpu=on cryptomgr.notests",
        *(option for card in cards for option in card),
    ], log)


def gid_index(guest, device, address):
    """Index of the GID that is made of the card's IPv4 address; a new address has one a moment later."""
    output = guest.run(
        "for t in $(seq 100); do for i in 0 1 2 3 4 5 6 7; do "
        f"grep -q ffff /sys/class/infiniband/{device}/ports/1/gids/$i && echo gid=$i && break 2; done; sleep 0.1; done")
    found = [line for line in output if line.startswith("gid=")]
    if not found:
        raise LabError(f"{guest.name}: expected a GID made of {address} on {device}, found none")
    return int(found[0][4:])


def configure_card(guest, number, address, neighbour, route=None):
    """Card eth<number>: address, and the neighbour's (address, MAC), for these networks do not answer ARP; soft RoCE as rxe<number> on it.
    Returns the GID index of the address."""
    card, device = f"eth{number}", f"rxe{number}"
    guest.run(f"/lab/ip link set lo up && /lab/ip link set {card} mtu 1500 up")
    guest.run(f"/lab/ip address add {address}/24 dev {card}")
    if route:
        guest.run(f"/lab/ip route add {route} dev {card}")
    guest.run(f"/lab/ip neighbour replace {neighbour[0]} lladdr {neighbour[1]} dev {card} nud permanent")
    guest.run(f"/lab/rdma link add {device} type rxe netdev {card}")
    return gid_index(guest, device, address)


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, good, what):
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'}  {what}", flush=True)

    def check(self, what, function):
        started = time.monotonic()
        try:
            found = function()
        except Exception as error:  # a check that cannot run has failed, whatever the reason
            self.line(False, f"{what}: {type(error).__name__}: {error}")
            return False
        self.line(True, f"{what}: {found} ({time.monotonic() - started:.1f} s)")
        return True
