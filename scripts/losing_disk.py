#!/usr/bin/env python3
"""A file system whose power fails: what was not synced is lost then, as on a machine. Data folders lie on it in tests of processes.

    losing_disk.py FOLDER [SEED]

It mounts itself at FOLDER (FUSE; root, or a user namespace with a mount namespace: `unshare -rm`), keeps all bytes in memory, prints
`ready`, and reads commands from standard input until it ends:

    cut NAME...    the power fails for these folders in FOLDER, at one moment; answers `cut`, with what was lost and kept

It sees the system calls of processes, not their own account of what they do, so a write or sync that is missing in a program is missing
here. As on a disk, any part of what was not synced may have survived a cut. Of each page (4096 bytes) some of its versions since the last
sync, the last of them perhaps in some of its sectors of 512 bytes; of files that were made, renamed and removed since the last sync of
their folder, any. A page of a journal that was being written may hold neither version. Files that were open before a cut fail with EIO, so
a process that the cut should have stopped cannot acknowledge anything from then on.

Stop the processes (SIGSTOP), cut, and kill them: so nothing reads what a machine would never have read.
"""

import ctypes
import errno
import os
import random
import select
import struct
import sys

PAGE, SECTOR = 4096, 512
MOST = 128 << 10
MOUNT, FORCED_LAZILY = 0, 2
# Versions of a page that are remembered between two syncs, beside the synced one.
VERSIONS = 8
ZEROS = bytes(PAGE)
FOLDER_MODE, FILE_MODE = 0o040755, 0o100600
ROOT = 1


class Node:
    """A file or a folder."""

    def __init__(self, number, mode):
        self.number, self.mode, self.is_lost = number, mode, False
        self.known = 0
        # Of a folder: names now, names on the disk, changes in between.
        self.names, self.names_on_disk, self.changes = {}, {}, []
        # Of a file: pages now, versions of those that have changed since the last sync (the synced one first), sizes.
        self.pages, self.versions = {}, {}
        self.size, self.size_on_disk = 0, 0

    @property
    def is_folder(self):
        return self.mode & 0o170000 == 0o040000

    def put(self, index, page):
        """Replaces a page."""
        former = self.pages.get(index, ZEROS)
        versions = self.versions.setdefault(index, [])
        versions.append(former)
        if len(versions) > VERSIONS:
            del versions[1]
        self.pages[index] = page

    def write(self, offset, data):
        at, end = offset, offset + len(data)
        while at < end:
            index, begin = divmod(at, PAGE)
            part = data[at - offset : at - offset + PAGE - begin]
            if len(part) < PAGE:
                former = self.pages.get(index, ZEROS)
                part_end = begin + len(part)
                at += len(part)
                part = former[:begin] + part + former[part_end:]
            else:
                at += PAGE
            self.put(index, part)
        self.size = max(self.size, end)

    def read(self, offset, count):
        end = min(self.size, offset + count)
        if offset >= end:
            return b""
        first, last = offset // PAGE, (end - 1) // PAGE
        found = b"".join(self.pages.get(index, ZEROS) for index in range(first, last + 1))
        return found[offset - first * PAGE : end - first * PAGE]

    def cut_to(self, size):
        """Makes the file shorter or longer."""
        if size < self.size:
            index, begin = divmod(size, PAGE)
            for page in [page for page in self.pages if page > index or page == index and begin == 0]:
                self.put(page, ZEROS)
            if begin and index in self.pages:
                self.put(index, self.pages[index][:begin] + bytes(PAGE - begin))
        self.size = size

    def sync(self):
        self.versions.clear()
        self.size_on_disk = self.size


class Disk:
    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.nodes = {ROOT: Node(ROOT, FOLDER_MODE)}
        self.next = ROOT + 1

    def make(self, mode):
        node = Node(self.next, mode)
        self.nodes[node.number] = node
        self.next += 1
        return node

    # ---- power ----

    def cut(self, names):
        """Replaces these folders of the root by what is on the disk. Those that processes know are lost."""
        told = {"lost": 0, "kept": 0}
        root = self.nodes[ROOT]
        # Often all or nothing of it survives.
        odds = self.draw.choice([0, 1, 2, 4])
        for name in names:
            former = root.names.get(name)
            if former is not None:
                root.names[name] = self.survivor(former, name, odds, told)
        return told

    def survivor(self, former, name, odds, told):
        former.is_lost = True
        node = self.make(former.mode)
        if former.is_folder:
            names = dict(former.names_on_disk)
            for kind, first, second in former.changes:
                if self.draw.randrange(4) >= odds:
                    told["lost"] += 1
                    continue
                told["kept"] += 1
                if kind == "make":
                    names[first] = second
                elif kind == "remove":
                    names.pop(first, None)
                elif first in names:
                    names[second] = names.pop(first)
            for each in former.names.values():
                each.is_lost = True
            node.names = {each: self.survivor(below, each, odds, told) for each, below in names.items()}
            node.names_on_disk = dict(node.names)
            return node
        node.size = former.size_on_disk if self.draw.randrange(4) >= odds else former.size
        node.pages = dict(former.pages)
        for index, versions in former.versions.items():
            node.pages[index] = self.surviving_page(versions, former.pages[index], "journal" in name, odds, told)
        node.cut_to(node.size)
        node.sync()
        return node

    def surviving_page(self, versions, last, is_journal, odds, told):
        if self.draw.randrange(4) >= odds:
            told["lost"] += 1
            return versions[0]
        told["kept"] += 1
        all_versions = [*versions, last]
        at = len(versions) if self.draw.randrange(2) else self.draw.randrange(1, len(all_versions))
        page = all_versions[at]
        if self.draw.randrange(8) == 0:
            # Some of its sectors only.
            former = all_versions[at - 1]
            halves = [self.draw.choice([former, page])[begin : begin + SECTOR] for begin in range(0, PAGE, SECTOR)]
            page = b"".join(halves)
        if is_journal and self.draw.randrange(8) == 0:
            page = b"\xee" * PAGE
        return page


class Server:
    """The kernel's requests: see <linux/fuse.h>, protocol 7.31."""

    def __init__(self, disk, folder):
        self.disk, self.device = disk, os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"losing_disk", folder.encode(), b"fuse", ctypes.c_ulong(0), options.encode()) != 0:
            sys.exit(f"{folder}: mounting it: {os.strerror(ctypes.get_errno())}")
        self.requests = {
            1: self.lookup,
            3: lambda node, _: self.attributes(node),
            4: self.set_attributes,
            9: self.make_folder,
            10: self.remove,
            11: self.remove,
            12: lambda node, body: self.rename(node, body[8:], *struct.unpack_from("<Q", body)),
            14: lambda *_: struct.pack("<QII", 0, 0, 0),
            15: self.read,
            16: self.write,
            17: lambda *_: struct.pack("<5Q4I24x", 1 << 28, 1 << 27, 1 << 27, 1 << 20, 1 << 20, PAGE, 255, PAGE, 0),
            18: lambda *_: b"",
            20: self.sync,
            26: self.begin,
            27: lambda *_: struct.pack("<QII", 0, 0, 0),
            28: self.list,
            29: lambda *_: b"",
            30: self.sync_names,
            35: self.create,
            43: self.reserve,
            45: lambda node, body: self.rename(node, body[16:], *struct.unpack_from("<QI", body)),
        }

    def answer(self, unique, error, body=b""):
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        except OSError as failed:
            # The process that has asked was killed.
            if failed.errno != errno.ENOENT:
                raise

    def serve(self):
        """Answers a request."""
        try:
            request = os.read(self.device, MOST + 4096)
        except OSError as failed:
            if failed.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                return True
            return False
        length, kind, unique, number = struct.unpack_from("<IIQQ", request)
        body = request[40:length]
        if kind == 2:
            self.forget(number, *struct.unpack_from("<Q", body))
            return True
        if kind == 42:
            (count,) = struct.unpack_from("<I", body)
            for each in range(count):
                self.forget(*struct.unpack_from("<QQ", body, 8 + 16 * each))
            return True
        if kind == 36:
            return True
        node = self.disk.nodes.get(number)
        work = self.requests.get(kind)
        if work is None:
            self.answer(unique, errno.ENOSYS)
        elif kind != 26 and (node is None or node.is_lost and kind not in (18, 29)):
            self.answer(unique, errno.EIO)
        else:
            try:
                self.answer(unique, 0, work(node, body))
            except OSError as failed:
                self.answer(unique, failed.errno)
        return True

    def forget(self, number, count):
        node = self.disk.nodes.get(number)
        if node is None or number == ROOT:
            return
        node.known -= count
        if node.known <= 0 and node.is_lost:
            del self.disk.nodes[number]

    # ---- answers ----

    def begin(self, _, body):
        _, _, ahead, flags = struct.unpack_from("<IIII", body)
        # Pages at once, and large writes.
        flags &= 1 << 0 | 1 << 5 | 1 << 22
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, ahead, flags, 16, 12, MOST, 1, MOST // PAGE, 0, 0)

    def status(self, node):
        blocks = len(node.pages) * (PAGE // 512)
        times = (0,) * 6
        links = 2 if node.is_folder else 1
        return struct.pack("<3Q3Q3I7I", node.number, node.size, blocks, *times, node.mode, links, 0, 0, 0, PAGE, 0)

    def attributes(self, node):
        return struct.pack("<QII", 0, 0, 0) + self.status(node)

    def entry(self, node):
        # No name and no status is remembered: a cut changes both.
        node.known += 1
        return struct.pack("<QQQQII", node.number, 0, 0, 0, 0, 0) + self.status(node)

    def lookup(self, node, body):
        found = node.names.get(body.rstrip(b"\0").decode())
        if found is None:
            raise OSError(errno.ENOENT, "")
        return self.entry(found)

    def set_attributes(self, node, body):
        valid, size, mode = struct.unpack_from("<I12xQ", body) + struct.unpack_from("<I", body, 68)
        if valid & 8:
            node.cut_to(size)
        if valid & 1:
            node.mode = node.mode & ~0o7777 | mode & 0o7777
        return self.attributes(node)

    def add(self, folder, name, mode):
        node = self.disk.make(mode)
        folder.names[name] = node
        folder.changes.append(("make", name, node))
        return node

    def make_folder(self, node, body):
        return self.entry(self.add(node, body[8:].rstrip(b"\0").decode(), FOLDER_MODE))

    def create(self, node, body):
        name = body[16:].rstrip(b"\0").decode()
        return self.entry(self.add(node, name, FILE_MODE)) + struct.pack("<QII", 0, 0, 0)

    def remove(self, node, body):
        name = body.rstrip(b"\0").decode()
        if name not in node.names:
            raise OSError(errno.ENOENT, "")
        del node.names[name]
        node.changes.append(("remove", name, None))
        return b""

    def rename(self, node, names, to, flags=0):
        first, second = (name.decode() for name in names.split(b"\0")[:2])
        if to != node.number or flags:
            raise OSError(errno.EXDEV, "")
        if first not in node.names:
            raise OSError(errno.ENOENT, "")
        node.names[second] = node.names.pop(first)
        node.changes.append(("rename", first, second))
        return b""

    def read(self, node, body):
        _, offset, count = struct.unpack_from("<QQI", body)
        return node.read(offset, count)

    def write(self, node, body):
        _, offset, count = struct.unpack_from("<QQI", body)
        node.write(offset, body[40 : 40 + count])
        return struct.pack("<II", count, 0)

    def sync(self, node, _):
        node.sync()
        return b""

    def sync_names(self, node, _):
        node.names_on_disk = dict(node.names)
        node.changes.clear()
        return b""

    def reserve(self, node, body):
        _, offset, count, mode = struct.unpack_from("<QQQI", body)
        if mode & ~1:
            raise OSError(errno.EOPNOTSUPP, "")
        if not mode & 1:
            node.size = max(node.size, offset + count)
        return b""

    def list(self, node, body):
        _, offset, room = struct.unpack_from("<QQI", body)
        answer = b""
        for at, (name, found) in enumerate(list(node.names.items())[offset:], offset):
            text = name.encode()
            kind = 4 if found.is_folder else 8
            line = struct.pack("<QQII", found.number, at + 1, len(text), kind) + text
            line += bytes(-len(line) % 8)
            if len(answer) + len(line) > room:
                break
            answer += line
        return answer


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder, seed = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else None
    disk = Disk(seed)
    server = Server(disk, folder)
    print("ready", flush=True)
    commands = os.fdopen(0, "rb", buffering=0)
    while True:
        ready, _, _ = select.select([server.device, commands], [], [])
        if server.device in ready and not server.serve():
            return
        if commands in ready:
            words = commands.readline().decode().split()
            if not words:
                break
            if words[0] == "cut":
                told = disk.cut(words[1:])
                print(f"cut, {told['lost']} changes lost, {told['kept']} kept", flush=True)
    ctypes.CDLL(None).umount2(folder.encode(), FORCED_LAZILY)


main()
