#!/usr/bin/env python3
"""Drives our switch's P4Runtime server with p4runtime-shell, an independent client.

    cargo run --release -p fatbtree-switch --example p4runtime_server &    # or: fatbtree switch --grpc ...
    scripts/interop_p4runtime_shell.py [--grpc 127.0.0.1:9559] [--device-id 1]

Without arguments for the program it loads p4/build/fatbtree_v1model. It sets the pipeline, then inserts, reads back,
modifies and deletes an exact, an LPM and a range entry, sets a default action and reads counters. It exits with 1 when
anything differs from what was written, or when a wrong update is accepted.

The first run makes a virtual environment (.venv-p4runtime-shell, ignored by git) and installs p4runtime-shell
from PyPI into it. Nothing else is needed: the package brings compiled P4Runtime messages along.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-p4runtime-shell"
PYTHON = VENV / "bin" / "python3"


def enter_venv():
    """Runs this script again inside the virtual environment, making it first if need be."""
    if os.environ.get("FATBTREE_INTEROP_VENV") == "1":
        return
    done = VENV / "installed"
    if not done.exists():
        print(f"making {VENV} and installing p4runtime-shell ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        requirements = ROOT / "scripts" / "requirements.txt"
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
        done.touch()
    # The package's generated code is older than the C++ parser of current protobuf releases accepts.
    environment = dict(os.environ, FATBTREE_INTEROP_VENV="1", PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")
    os.execve(PYTHON, [str(PYTHON), __file__, *sys.argv[1:]], environment)


FAILURES = []


def check(what, found, expected):
    if found == expected:
        print(f"ok    {what}")
    else:
        print(f"FAIL  {what}: expected {expected!r}, found {found!r}")
        FAILURES.append(what)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grpc", default="127.0.0.1:9559", help="address of the server")
    parser.add_argument("--device-id", type=int, default=1)
    parser.add_argument("--election-id", type=int, default=1)
    parser.add_argument("--p4info", type=Path, default=ROOT / "p4/build/fatbtree_v1model.p4info.txtpb")
    parser.add_argument("--json", type=Path, default=ROOT / "p4/build/fatbtree_v1model.json")
    arguments = parser.parse_args()

    import google.protobuf.text_format
    import p4runtime_sh.shell as sh
    from p4.config.v1 import p4info_pb2
    from p4runtime_sh.p4runtime import P4RuntimeWriteException

    p4info = google.protobuf.text_format.Parse(arguments.p4info.read_text(), p4info_pb2.P4Info())

    def name(objects, suffix):
        """Full name of the object that ends in `.suffix`, or in `.suffix_<number>`."""
        names = [thing.preamble.name for thing in objects]
        found = [n for n in names if n == suffix or n.endswith("." + suffix)]
        assert len(found) == 1, f"{suffix}: expected one object of {names}, found {found}"
        return found[0]

    def action(table_name, stem):
        """Full name of the table's action called `stem`, whatever number it carries."""
        table = next(t for t in p4info.tables if t.preamble.name == table_name)
        ids = {reference.id for reference in table.action_refs}
        names = [a.preamble.name for a in p4info.actions if a.preamble.id in ids]
        found = [n for n in names if n.split(".")[-1].rstrip("0123456789").rstrip("_") == stem.rstrip("_")]
        assert len(found) == 1, f"{stem}: expected one action of {names}, found {found}"
        return found[0]

    sh.setup(
        device_id=arguments.device_id,
        grpc_addr=arguments.grpc,
        election_id=(0, arguments.election_id),
        config=sh.FwdPipeConfig(str(arguments.p4info), str(arguments.json)),
        verbose=False,
    )
    try:
        check("the switch returns the P4Info it was given", sh.client.get_p4info(), p4info)

        def read(table):
            return list(sh.TableEntry(table).read())

        def strip(message):
            """A copy of a message with all byte strings in their canonical, shortest form."""
            copy = type(message)()
            copy.CopyFrom(message)
            for field, value in copy.ListFields():
                if isinstance(value, bytes):
                    setattr(copy, field.name, value.lstrip(b"\0") or b"\0")
                elif field.message_type:
                    getattr(copy, field.name).CopyFrom(strip(value))
            return copy

        def fields(entry):
            return {key: entry.match._mk[key] for key in entry.match._mk}

        def params(entry):
            return {key: int.from_bytes(p.value, "big") for key, p in entry.action._param_values.items()}

        def refused(what, code, function):
            try:
                function()
            except P4RuntimeWriteException as error:
                codes = [p4_error.canonical_code for _, p4_error in error.errors]
                check(f"{what} is refused ({error.errors[0][1].message})", codes, [code])
            else:
                check(f"{what} is refused", "accepted", "refused")

        def cycle(table, stem, match, first, second, priority=0):
            """One round with values as short as possible, one with values padded to the field's width: a switch takes
            both and answers with the short ones."""
            for canonical in (False, True):
                # In p4runtime-shell 0.0.6 this option and `verbose` are one and the same.
                sh.global_options["canonical_bytestrings"] = canonical
                entry = one_round(table, stem, match, first, second, priority)
            sh.global_options["canonical_bytestrings"] = False
            return entry

        def one_round(table, stem, match, first, second, priority):
            """Insert, read, insert again (refused), modify, read, delete, read."""
            entry = sh.TableEntry(table)(action=action(table, stem))
            for key, value in match.items():
                entry.match[key] = value
            entry.priority = priority
            for key, value in first.items():
                entry.action[key] = str(value)
            entry.metadata = b"interop"
            entry.insert()
            found = read(table)
            check(f"{table}: one entry after the insert", len(found), 1)
            expected = {key: strip(value) for key, value in fields(entry).items()}
            check(f"{table}: its key", fields(found[0]), expected)
            check(f"{table}: its priority", found[0].priority, priority)
            check(f"{table}: its metadata", found[0].metadata, b"interop")
            check(f"{table}: its parameters", params(found[0]), first)
            refused(f"{table}: the same entry once more", 6, entry.insert)
            for key, value in second.items():
                entry.action[key] = str(value)
            entry.modify()
            check(f"{table}: its parameters after the modify", params(read(table)[0]), second)
            entry.delete()
            check(f"{table}: nothing after the delete", read(table), [])
            refused(f"{table}: a second delete", 5, entry.delete)
            return entry

        node = name(p4info.tables, "node_set_a.coarse")
        exact = cycle(
            node,
            "quarter_by_high",
            {"epoch": "3", "address": "0x0002000000000400"},
            {"last_1": 1, "last_2": 2, "last_3": 3, "slot": 17, "first_child": 0x0001_0000_0400, "stride": 8, "kind": 1},
            {"last_1": 0, "last_2": 0, "last_3": 0xFFFF_FFFF, "slot": 17, "first_child": 0xFFFF_FFFF_FFFF, "stride": 0, "kind": 2},
        )
        route = name(p4info.tables, "ipv4_route")
        cycle(route, "forward", {"dst_ip": "10.1.0.0/16"}, {"port": 1}, {"port": 511})
        root = name(p4info.tables, "fat_root_0")
        cycle(
            root,
            "land",
            {"sub_table": "5", "slice": "100..4095"},
            {"address": 0x400, "partition": 1, "kind": 0},
            {"address": 0x800, "partition": 2, "kind": 1},
            priority=10,
        )

        core = name(p4info.tables, "core_route")
        default = sh.TableEntry(core)(action=action(core, "descend"), is_default=True)
        default.action["epoch"], default.action["sub_table"] = "7", "9"
        default.modify()
        query = sh.TableEntry(core)
        query.is_default = True
        found = list(query.read())
        check(f"{core}: one default entry", len(found), 1)
        check(f"{core}: its action", found[0].action.action_name, action(core, "descend"))
        check(f"{core}: its parameters", params(found[0]), {"epoch": 7, "sub_table": 9})

        exact.insert()
        exact.counter_data  # asking for it makes the shell send the field
        counted = next(exact.read())
        check(f"{node}: direct counter beside the entry", counted.counter_data.packet_count, 0)
        direct = sh.DirectCounterEntry(name(p4info.direct_counters, "node_set_a.visits"))
        direct.table_entry = exact
        direct.packet_count = 42
        direct.modify()
        check(f"{node}: direct counter after writing it", next(direct.read()).packet_count, 42)
        drops = sh.CounterEntry(name(p4info.counters, "drops"))
        cells = list(drops.read())
        size = next(c.size for c in p4info.counters if c.preamble.name == drops.name)
        check(f"{drops.name}: all cells", [cell.index for cell in cells], list(range(size)))
        drops.index = 1
        drops.packet_count = 5
        drops.modify()
        check(f"{drops.name}: one cell after writing it", next(drops.read()).packet_count, 5)
        exact.delete()

        const = name(p4info.tables, "node_set_a.coarse_compare_1")
        entries = read(const)
        check(f"{const}: const entries can be read", len(entries) > 0, True)
        refused(f"{const}: deleting a const entry", 7, entries[0].delete)
    finally:
        sh.teardown()
    if FAILURES:
        print(f"{len(FAILURES)} checks failed")
        sys.exit(1)
    print("all checks passed")


if __name__ == "__main__":
    enter_venv()
    main()
