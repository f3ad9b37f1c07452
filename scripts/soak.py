#!/usr/bin/env python3
"""The soak of soak.sh: clients and servers come and go, and room is counted at the end. See there."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = os.environ["FATBTREE_BIN"]
STRUCTURES = ["tree", "hash", "dolphin"]
# Keys that are used, and how many of them are there at a time, about.
KEYS = 3000
# Time after which a server ends the session of a client that was killed, and that in which it sweeps, with some to spare.
LEASE = 12
SETTLES = 150
PATIENCE = 90
# Room that may be in use, as a part of what the live data need in a new cluster: half-filled nodes, blocks of sizes that no value has now.
SHARE = float(os.environ.get("SOAK_SHARE", "0.35"))
# Bytes in use beside that, on all servers together.
BESIDE = 2 << 20
# Bytes that each session leaves at most on each server: the border of a line for each of three classes.
PER_SESSION = 3 * 64
# Bytes that each client that is killed, and each server that is, may cost a structure over several servers: its servers do not sweep.
PER_DEATH = {"tree": 0, "hash": 256 << 10, "dolphin": 256 << 10}


class Failed(Exception):
    """What was found."""


def run(*arguments, check=True):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=PATIENCE)
    if check and done.returncode != 0:
        raise Failed(f"fatbtree {' '.join(arguments)[:200]}: exit code {done.returncode}: {done.stderr.strip()}")
    return done


class Cluster:
    """The processes of a cluster file, and its folders."""

    def __init__(self, folder, structure):
        self.structure, self.data, self.up = structure, os.path.join(folder, "data"), None
        self.file = os.path.join(folder, "cluster.toml")
        os.makedirs(folder)
        text = run("topology", "example").stdout
        with open(self.file, "w") as file:
            file.write(text)
        self.members, self.answers, self.ready = {}, set(), threading.Event()
        self.start()

    def start(self):
        command = [PROGRAM, "up", self.file, "--structure", self.structure, "--data", self.data]
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

    def kill_server(self, name):
        process = self.members[name]
        os.kill(process, signal.SIGKILL)
        began = time.monotonic()
        while self.members[name] == process or name not in self.answers:
            if time.monotonic() > began + PATIENCE:
                raise Failed(f"memory server {name} does not answer again")
            time.sleep(0.05)

    def rooms(self):
        """Use of each server's region; None while a server has not told."""
        status = json.loads(run("control", "status", "--cluster", self.file, "--json").stdout)
        rooms = {server["name"]: server["room"] for server in status["servers"]}
        return rooms if all(rooms.values()) else None


def used(rooms):
    return sum(room["live"] + room["held"] + room["lost"] for room in rooms.values())


def value(key, number, draw):
    """Text that says whose it is. Most values are short, some long."""
    length = draw.choice([8, 30, 100, 100, 500, 1000, 1000, 4000, 20_000])
    return (f"v{key}.{number}." + "x" * length)[:length] if length > 20 else f"v{number % 1000000}"


class Soak:
    def __init__(self, folder, structure, seconds, seed):
        self.draw, self.structure = random.Random(f"{seed} {structure}"), structure
        self.folder, self.end = folder, time.monotonic() + seconds
        self.cluster = Cluster(os.path.join(folder, structure), structure)
        # Values that a key may have; None: not there. More than one behind a client that was killed.
        self.model = {key: {None} for key in range(1, KEYS + 1)}
        self.number, self.counts = 0, {}

    def count(self, what, more=1):
        self.counts[what] = self.counts.get(what, 0) + more

    def operation(self, key=None):
        key = key or self.draw.randrange(1, KEYS + 1)
        self.number += 1
        kind = self.draw.choice(["put", "put", "put", "delete", "delete", "get"])
        return kind, key, value(key, self.number, self.draw) if kind == "put" else None

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
        self.model[key] = now
        self.count("answers")

    def short_session(self):
        """One operation, by a process of its own."""
        kind, key, new = operation = self.operation()
        at = ["--cluster", self.cluster.file, "--structure", self.structure, "--patience", str(PATIENCE // 2)]
        words = [kind, *at, str(key)] + ([new] if new else [])
        done = run(*words, check=False)
        self.count("sessions")
        answers = {"put": {0: "ok"}, "delete": {0: "deleted", 1: "not there"}, "get": {1: "not there"}}[kind]
        if kind == "get" and done.returncode == 0:
            return self.note(operation, done.stdout.strip())
        if done.returncode not in answers:
            raise Failed(f"{kind} {key}: exit code {done.returncode}: {done.stderr.strip()}")
        self.note(operation, answers[done.returncode])

    def session(self, operations, dies_after=None):
        """Operations of one client. One that dies is killed after so many answers, with the next one under way."""
        command = [PROGRAM, "shell", "--cluster", self.cluster.file, "--structure", self.structure]
        shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        errors = []
        threading.Thread(target=lambda: errors.extend(shell.stderr), daemon=True).start()
        self.count("sessions")
        try:
            for at, operation in enumerate(operations):
                kind, key, new = operation
                shell.stdin.write(f"{kind} {key} {new or ''}\n")
                shell.stdin.flush()
                if at == dies_after:
                    time.sleep(self.draw.random() * 0.004)
                    shell.kill()
                    shell.wait()
                    self.count("clients killed")
                    # Its locks are freed when its session ends.
                    time.sleep(LEASE)
                    if kind != "get":
                        self.model[key] = self.model[key] | {new}
                    return
                answer = shell.stdout.readline().strip()
                if not answer:
                    raise Failed(f"{kind} {key}: no answer: {errors[-1:]}")
                self.note(operation, answer)
            shell.stdin.close()
            if shell.wait(PATIENCE) != 0:
                raise Failed(f"a session ended badly: {errors[-1:]}")
        finally:
            shell.kill()

    def check_all(self):
        keys = list(self.model)
        self.session([("get", key, None) for key in keys])

    def round(self):
        act = self.draw.randrange(20)
        if act < 8:
            for _ in range(5):
                self.short_session()
        elif act < 13:
            self.session([self.operation() for _ in range(self.draw.randrange(1, 300))])
        elif act < 18:
            self.session([self.operation() for _ in range(200)], self.draw.randrange(200))
        elif act == 18:
            self.cluster.kill_server(self.draw.choice(["left", "right"]))
            self.count("servers killed")
        else:
            self.cluster.stop()
            self.cluster.start()
            self.count("restarts")

    def soak(self):
        self.session([("put", key, value(key, 0, self.draw)) for key in range(1, KEYS // 2)])
        while time.monotonic() < self.end:
            self.round()
        time.sleep(LEASE)
        self.check_all()
        self.compare()

    def compare(self):
        """Room in use, and what the live data need: loaded by one session into a new cluster, in another order."""
        found = self.when_settled(self.cluster)
        self.cluster.stop()
        fresh = Cluster(os.path.join(self.folder, f"{self.structure}-fresh"), self.structure)
        live = [(key, next(iter(values))) for key, values in self.model.items() if None not in values]
        self.draw.shuffle(live)
        loader = Soak.__new__(Soak)
        loader.__dict__.update(self.__dict__, cluster=fresh, model={key: {None} for key, _ in live}, counts={})
        loader.session([("put", key, new) for key, new in live])
        need = self.when_settled(fresh)
        fresh.stop()
        servers = len(found)
        deaths = self.counts.get("clients killed", 0) + self.counts.get("servers killed", 0)
        sessions = self.counts["sessions"] * PER_SESSION * servers
        bound = used(need) * (1 + SHARE) + BESIDE + sessions + deaths * PER_DEATH[self.structure]
        told = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        lost = sum(room["lost"] for room in found.values())
        print(
            f"{self.structure}: {told}; {len(live)} keys; in use {used(found):,} bytes, {lost:,} of them lost; "
            f"a new cluster needs {used(need):,}; bound {int(bound):,}",
            flush=True,
        )
        if used(found) > bound:
            raise Failed(f"room is lost: {json.dumps(found)}")

    def when_settled(self, cluster):
        """Use of the regions when it falls no more: sessions have lapsed, and sweeps have ended."""
        began, least, rooms = time.monotonic(), None, None
        changed = began
        while time.monotonic() < changed + 45 and time.monotonic() < began + SETTLES:
            now = cluster.rooms()
            if now and (least is None or used(now) < least):
                least, rooms, changed = used(now), now, time.monotonic()
            time.sleep(1)
        if rooms is None:
            raise Failed("a memory server does not tell how its region is used")
        return rooms


def main():
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    structures = sys.argv[2:] or STRUCTURES
    unknown = [name for name in structures if name not in STRUCTURES]
    if unknown:
        sys.exit(f"no structure {unknown[0]}: expected one of {', '.join(STRUCTURES)}")
    seed = int(os.environ.get("SOAK_SEED", random.randrange(1 << 32)))
    print(f"SOAK_SEED={seed}", flush=True)
    failed = False
    for structure in structures:
        with tempfile.TemporaryDirectory(prefix="fatbtree-soak-") as folder:
            soak = None
            try:
                soak = Soak(folder, structure, minutes * 60 / len(structures), seed)
                soak.soak()
            except (Failed, subprocess.TimeoutExpired) as error:
                print(f"{structure}: FAILED: {error}", flush=True)
                failed = True
            finally:
                if soak and soak.cluster.up.poll() is None:
                    soak.cluster.up.send_signal(signal.SIGINT)
                    soak.cluster.up.wait()
    sys.exit(1 if failed else 0)


main()
