#!/usr/bin/env python3
"""The soak of soak.sh: clients and servers come and go, power fails, and room is counted at the end. See there."""

import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = os.environ["FATBTREE_BIN"]
STRUCTURES = ["tree", "hash", "dolphin"]
SERVERS = ["left", "right"]
# Keys that are used, and how many of them are there at a time, about.
KEYS = 4000
# What a number of a key is multiplied by (modulo 2**64), so that keys lie on all servers.
SPREAD = 0x9E37_79B9_7F4A_7C15
# Bytes of values: most are short, some long.
LENGTHS = [8, 8, 30, 30, 100, 100, 100, 500, 500, 1000, 1000, 1000, 4000, 4000, 20_000, 100_000]
# Time after which a server ends the session of a client that was killed, and that in which it sweeps, with some to spare.
LEASE = 12
SETTLES = 150
# Use that stays the same for this long has settled: longer than servers take to tell the controller, and to sweep.
STAYS = 45
PATIENCE = 90
# Room that may be in use, as a part of what the live data need in a new cluster: half-filled nodes, blocks of sizes that no value has now.
# Measured in 20 minutes: 0.1 % for trees, and for a hash table on one server.
SHARE = float(os.environ.get("SOAK_SHARE", "0.05"))
# Bytes in use beside that, on all servers together.
BESIDE = 2 << 20
# Bytes that each session leaves at most on each server: the border of a line for each of three classes.
PER_SESSION = 3 * 64
# Bytes that each death of a client or server, and each restart, may cost a structure over several servers: what was freed and not used again
# is forgotten, and these servers do not sweep. Measured with these lengths: 160 KB.
PER_DEATH = {"tree": 0, "hash": 384 << 10, "dolphin": 384 << 10}
# Where power fails: `--sync` of the servers, in seconds. Otherwise folders lie on the disk of the machine.
POWER = os.environ.get("SOAK_POWER")
# What a power failure may take, in seconds: the interval, and the time of one sync on a busy machine.
ROUNDS = int(os.environ.get("SOAK_ROUNDS", 1 << 30))
TAKES = float(POWER or 0) + (1 if float(POWER or 0) else 0)


class Failed(Exception):
    """What was found."""


def run(*arguments, check=True):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=PATIENCE)
    if check and done.returncode != 0:
        raise Failed(f"fatbtree {' '.join(arguments)[:200]}: exit code {done.returncode}: {done.stderr.strip()}")
    return done


class LosingDisk:
    """A disk that loses what was not synced, for the data folders of a cluster: losing_disk.py."""

    def __init__(self, folder, seed):
        os.makedirs(folder)
        command = [sys.executable, os.path.join(os.path.dirname(__file__), "losing_disk.py"), folder, str(seed)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("ready")

    def expect(self, word):
        answer = self.process.stdout.readline()
        if not answer.startswith(word):
            raise Failed(f"the losing disk answers {answer!r}, not {word}")
        return answer

    def cut(self, names):
        self.process.stdin.write(f"cut {' '.join(names)}\n")
        self.process.stdin.flush()
        return self.expect("cut")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def is_stopped(process):
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "TZ"


class Cluster:
    """The processes of a cluster file, and its folders."""

    def __init__(self, folder, structure, servers, disk=None):
        self.structure, self.servers, self.up = structure, SERVERS[:servers], None
        self.data, self.disk = disk or os.path.join(folder, "data"), disk
        self.file = os.path.join(folder, "cluster.toml")
        os.makedirs(folder)
        text = run("topology", "example", "single").stdout
        for name in SERVERS[servers:]:
            text = re.sub(r'\[\[memory_server\]\]\nname = "' + name + r'"\n(.+\n)+', "", text)
        with open(self.file, "w") as file:
            file.write(text)
        self.members, self.answers, self.ready = {}, set(), threading.Event()
        self.start()

    def start(self):
        command = [PROGRAM, "up", self.file, "--structure", self.structure, "--data", self.data]
        command += ["--sync", POWER] if POWER else []
        self.ready.clear()
        self.up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self.follow, args=(self.up.stdout,), daemon=True).start()
        if not self.ready.wait(PATIENCE):
            raise Failed(f"the cluster is not ready after {PATIENCE} s: {self.log[-3:]}")

    def follow(self, lines):
        self.log = []
        for line in lines:
            self.log.append(line.rstrip())
            words = line.split()
            if words == ["ready"]:
                self.ready.set()
            # The time, the name, the kind, the address.
            if words[4:6] == ["started,", "process"]:
                self.answers.discard(words[1])
                self.members[words[1]] = int(words[6])
            if words[4:5] == ["answers"]:
                self.answers.add(words[1])

    def stop(self):
        self.up.send_signal(signal.SIGINT)
        if self.up.wait(PATIENCE) != 0:
            raise Failed(f"the cluster ended badly: {self.log[-3:]}")

    def kill_servers(self, names, cut=None):
        """Kills servers at once; `cut` is what befalls their folders when they have stopped. They are started again."""
        processes = {name: self.members[name] for name in names}
        if cut:
            self.hold(processes.values())
            cut(names)
        for process in processes.values():
            os.kill(process, signal.SIGKILL)
        return processes

    def hold(self, processes):
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        while not all(is_stopped(process) for process in processes):
            time.sleep(0.001)

    def until_back(self, killed):
        began = time.monotonic()
        while any(self.members[name] == process or name not in self.answers for name, process in killed.items()):
            if self.up.poll() is not None:
                raise Failed(f"the cluster has ended: {self.log[-3:]}")
            if time.monotonic() > began + PATIENCE:
                raise Failed(f"memory servers {', '.join(killed)} do not answer again: {self.log[-3:]}")
            time.sleep(0.05)

    def kill_all(self, cut=None):
        """Kills all processes, those of switches too, and starts them again."""
        processes = [self.members[name] for name in self.servers]
        if cut:
            self.hold(processes)
            cut(self.servers)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        self.up.kill()
        self.up.wait()
        # The others end with it.
        began = time.monotonic()
        while any(os.path.exists(f"/proc/{process}") for process in self.members.values()):
            if time.monotonic() > began + PATIENCE:
                raise Failed("the cluster's processes do not end")
            time.sleep(0.05)
        self.start()

    def rooms(self):
        """Use of each server's region; None while a server has not told."""
        status = json.loads(run("control", "status", "--cluster", self.file, "--json").stdout)
        rooms = {server["name"]: server["room"] for server in status["servers"]}
        return rooms if all(rooms.values()) else None

    def folder_bytes(self):
        """Room of the data folders on the disk."""
        files = (os.path.join(at, name) for at, _, names in os.walk(self.data) for name in names)
        return sum(os.stat(file).st_blocks * 512 for file in files)


def used(rooms):
    return sum(room["live"] + room["held"] + room["lost"] for room in rooms.values())


def spread(key):
    return key * SPREAD % (1 << 64)


def value(key, number, draw):
    """Text that says whose it is."""
    length = draw.choice(LENGTHS)
    return (f"v{key}.{number}." + "x" * length)[:length] if length > 20 else f"v{number % 1000000}"


class Shell:
    """A session of a client: a line in, a line out."""

    def __init__(self, cluster):
        command = [PROGRAM, "shell", "--cluster", cluster.file, "--structure", cluster.structure]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        self.process = subprocess.Popen(command, text=True, **pipes)
        self.answers = queue.SimpleQueue()
        self.readers = [
            threading.Thread(target=self.read, args=(pipe, is_error), daemon=True)
            for pipe, is_error in [(self.process.stdout, False), (self.process.stderr, True)]
        ]
        for reader in self.readers:
            reader.start()

    def read(self, pipe, is_error):
        for line in pipe:
            # Others on standard error are warnings, or say at the end that lines have failed.
            if not is_error or line.startswith("line ") or line.startswith("error"):
                self.answers.put((line.strip(), is_error))
        self.answers.put(("the shell has ended", True))

    def send(self, kind, key, new):
        self.process.stdin.write(f"{kind} {spread(key)} {new or ''}\n")
        self.process.stdin.flush()

    def answer(self):
        """The answer, and whether it is an error."""
        try:
            return self.answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"no answer in {PATIENCE} s") from None


class Soak:
    def __init__(self, folder, structure, servers, seconds, seed):
        self.draw, self.structure, self.servers = random.Random(f"{seed} {structure} {servers}"), structure, servers
        self.name = f"{structure}, {servers} server{'s'[: servers - 1]}"
        self.folder, self.end = folder, time.monotonic() + seconds
        self.disk = LosingDisk(os.path.join(folder, "disk"), seed) if POWER else None
        data = os.path.join(folder, "disk") if POWER else None
        self.cluster = Cluster(os.path.join(folder, structure), structure, servers, data)
        # Values that a key may have; None: not there. More than one after a client was killed, or the power has failed.
        self.model = {key: {None} for key in range(1, KEYS + 1)}
        # For each key what else it might have had, and until when; and the last value that was acknowledged.
        self.former, self.latest = {}, {}
        self.number, self.counts = 0, {}

    def count(self, what, more=1):
        self.counts[what] = self.counts.get(what, 0) + more

    def operation(self, key=None):
        key = key or self.draw.randrange(1, KEYS + 1)
        self.number += 1
        kind = self.draw.choice(["put", "put", "put", "delete", "delete", "get"])
        return kind, key, value(key, self.number, self.draw) if kind == "put" else None

    def become(self, key, now):
        """Sets the values that a key may have. What it might have had is what a power failure may bring back."""
        if now != self.model[key]:
            self.former.setdefault(key, []).append((time.monotonic(), self.model[key]))
            self.model[key] = now

    def note(self, operation, answer):
        """Checks an answer, and takes over what it means."""
        kind, key, new = operation
        may_be = self.model[key]
        if kind == "put":
            good, now = answer == "ok", {new}
        elif kind == "delete":
            there, absent = any(may_be - {None}), None in may_be
            good, now = answer == "deleted" and there or answer == "not there" and absent, {None}
        else:
            found = None if answer == "not there" else answer
            good, now = found in may_be, {found}
        if not good:
            raise Failed(f"{kind} {key} answered {answer[:80]!r}, it may be {[str(v)[:80] for v in may_be]}")
        if kind == "get" and key in self.latest and now != self.latest[key]:
            self.count("values gone back")
        self.latest[key] = now
        self.become(key, now)
        self.count("answers")

    def unknown(self, operation):
        """Takes over that an operation may have been carried out, or not."""
        kind, key, new = operation
        if kind != "get":
            self.latest.pop(key, None)
            self.become(key, self.model[key] | {new})

    # ---- what happens ----

    def cut(self, names):
        """The power of these servers fails, now."""
        now = time.monotonic()
        words = self.disk.cut(names).split()
        self.count("power failures")
        self.count("changes of pages and names lost", int(words[1]))
        self.count("servers without power", len(names))
        for key, former in self.former.items():
            for since, values in former:
                if since > now - TAKES:
                    self.model[key] = self.model[key] | values
        if TAKES == 0:
            # What was acknowledged is there.
            self.former.clear()

    def strike(self):
        """Servers die. Returns what waits until they are back."""
        names = self.draw.choice([self.cluster.servers, [self.draw.choice(self.cluster.servers)]])
        cut = self.cut if POWER and self.draw.randrange(3) else None
        self.count("servers killed", len(names))
        if self.draw.randrange(4) == 0:
            self.count("machines lost")
            return lambda: self.cluster.kill_all(cut)
        killed = self.cluster.kill_servers(names, cut)
        return lambda: self.cluster.until_back(killed)

    # ---- sessions ----

    def short_session(self):
        """One operation, by a process of its own."""
        kind, key, new = operation = self.operation()
        at = ["--cluster", self.cluster.file, "--structure", self.structure, "--patience", str(PATIENCE // 2)]
        words = [kind, *at, str(spread(key))] + ([new] if new else [])
        done = run(*words, check=False)
        self.count("sessions")
        answers = {"put": {0: "ok"}, "delete": {0: "deleted", 1: "not there"}, "get": {1: "not there"}}[kind]
        if kind == "get" and done.returncode == 0:
            return self.note(operation, done.stdout.strip())
        if done.returncode not in answers:
            raise Failed(f"{kind} {key}: exit code {done.returncode}: {done.stderr.strip()}")
        self.note(operation, answers[done.returncode])

    def session(self, operations, dies_after=None, struck_at=None):
        """Operations of one client. One that dies is killed after so many answers, with the next one under way. Servers are struck while the
        operation with that number is under way."""
        shell, is_struck = Shell(self.cluster), False
        self.count("sessions")
        try:
            for at, operation in enumerate(operations):
                kind, key, new = operation
                shell.send(*operation)
                if at == dies_after:
                    time.sleep(self.draw.random() * 0.004)
                    shell.process.kill()
                    shell.process.wait()
                    self.count("clients killed")
                    # Its locks are freed when its session ends.
                    time.sleep(LEASE)
                    return self.unknown(operation)
                until_back = None
                if at == struck_at:
                    time.sleep(self.draw.random() * 0.01)
                    before, until_back, is_struck = self.model[key], self.strike(), True
                    until_back()
                answer, is_error = shell.answer()
                if is_error and not is_struck:
                    raise Failed(f"{kind} {key}: {answer}")
                if is_error:
                    self.count("errors after deaths")
                    self.unknown(operation)
                    if answer == "the shell has ended":
                        return None
                else:
                    self.note(operation, answer)
                if until_back and TAKES:
                    # It may have been acknowledged before the power failed.
                    self.model[key] = self.model[key] | before
            shell.process.stdin.close()
            if shell.process.wait(PATIENCE) != 0 and not is_struck:
                raise Failed(f"a session ended badly: {shell.answer()[0]}")
        finally:
            shell.process.kill()
            shell.process.wait()

    def check_all(self):
        keys = list(self.model)
        self.session([("get", key, None) for key in keys])

    def round(self):
        # Where power fails, it does so more often.
        act = self.draw.choice([0, 6, 10, 13, 13, 13, 16, 16, 18]) if POWER else self.draw.randrange(20)
        if act < 6:
            for _ in range(5):
                self.short_session()
        elif act < 10:
            self.session([self.operation() for _ in range(self.draw.randrange(1, 300))])
        elif act < 13:
            self.session([self.operation() for _ in range(200)], dies_after=self.draw.randrange(200))
        elif act < 16:
            # Answers after a failure are those of the same keys, so that what came back is looked at.
            operations = [self.operation() for _ in range(200)]
            again = [("get", key, None) for _, key, _ in operations]
            self.session(operations + again, struck_at=self.draw.randrange(200))
        elif act < 18:
            self.strike()()
        else:
            self.cluster.stop()
            self.cluster.start()
            self.count("restarts")
        self.count("rounds")
        limit = time.monotonic() - 60
        self.former = {
            key: recent
            for key, former in self.former.items()
            if (recent := [each for each in former if each[0] > limit])
        }

    def soak(self):
        self.session([("put", key, value(key, 0, self.draw)) for key in range(1, KEYS // 2)])
        while time.monotonic() < self.end and self.counts.get("rounds", 0) < ROUNDS:
            self.round()
        time.sleep(LEASE)
        self.check_all()
        self.compare()

    def compare(self):
        """Room in use, and what the live data need: loaded by one session into a new cluster, in another order."""
        found = self.when_settled(self.cluster)
        self.cluster.stop()
        found_folder = self.cluster.folder_bytes()
        fresh = Cluster(os.path.join(self.folder, "fresh"), self.structure, self.servers)
        live = [(key, next(iter(values))) for key, values in self.model.items() if None not in values]
        self.draw.shuffle(live)
        loader = Soak.__new__(Soak)
        loader.__dict__.update(self.__dict__, cluster=fresh, model={key: {None} for key, _ in live}, counts={}, former={}, latest={})
        try:
            loader.session([("put", key, new) for key, new in live])
            need = self.when_settled(fresh)
        finally:
            fresh.stop()
        need_folder = fresh.folder_bytes()
        deaths = self.counts.get("clients killed", 0) + self.counts.get("servers killed", 0)
        deaths += self.counts.get("restarts", 0) * self.servers
        beside = BESIDE + self.counts["sessions"] * PER_SESSION * self.servers
        beside += deaths * PER_DEATH[self.structure] if self.servers > 1 else 0
        bound = int(used(need) * (1 + SHARE)) + beside
        bound_folder = int(need_folder * (1 + SHARE)) + beside
        told = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        lost = sum(room["lost"] for room in found.values())
        print(
            f"{self.name}: {told}; {len(live)} keys; in use {used(found):,} bytes, {lost:,} of them lost; "
            f"a new cluster needs {used(need):,}; bound {bound:,}; folders {found_folder:,}, new ones {need_folder:,}, "
            f"bound {bound_folder:,}",
            flush=True,
        )
        if used(found) > bound:
            raise Failed(f"room is lost: {json.dumps(found)}")
        if found_folder > bound_folder and not POWER:
            raise Failed(f"data folders have {found_folder:,} bytes, bound {bound_folder:,}")

    def when_settled(self, cluster):
        """Use of the regions when it has stayed the same for a while: sessions have lapsed, and sweeps have ended."""
        began, rooms = time.monotonic(), None
        changed = began
        while time.monotonic() < changed + STAYS and time.monotonic() < began + SETTLES:
            now = cluster.rooms()
            if now and now != rooms:
                rooms, changed = now, time.monotonic()
            time.sleep(1)
        if rooms is None:
            raise Failed("a memory server does not tell how its region is used")
        return rooms

    def close(self):
        if self.cluster.up.poll() is None:
            self.cluster.up.send_signal(signal.SIGINT)
            self.cluster.up.wait()
        if self.disk:
            self.disk.end()


def main():
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    structures = [word for word in sys.argv[2:] if not word.isdecimal()] or STRUCTURES
    counts = [int(word) for word in sys.argv[2:] if word.isdecimal()] or [1, 2]
    unknown = [name for name in structures if name not in STRUCTURES]
    if unknown:
        sys.exit(f"no structure {unknown[0]}: expected one of {', '.join(STRUCTURES)}")
    seed = int(os.environ.get("SOAK_SEED", random.randrange(1 << 32)))
    print(f"SOAK_SEED={seed}", flush=True)
    failed = False
    each = minutes * 60 / len(structures) / len(counts)
    for structure, servers in [(structure, servers) for structure in structures for servers in counts]:
        with tempfile.TemporaryDirectory(prefix="fatbtree-soak-") as folder:
            soak = None
            try:
                soak = Soak(folder, structure, servers, each, seed)
                soak.soak()
            except (Failed, subprocess.TimeoutExpired) as error:
                print(f"{structure}, {servers}: FAILED: {error}; {soak.counts if soak else ''}", flush=True)
                failed = True
            finally:
                if soak:
                    soak.close()
    sys.exit(1 if failed else 0)


main()
