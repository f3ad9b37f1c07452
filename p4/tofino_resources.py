#!/usr/bin/env python3
"""What a compiled program takes of a Tofino, read from the compiler's assembly listings.

usage: tofino_resources.py DIR SIZES.json REPORT.md COMPILER

DIR has a folder for each chip and role (tofino-core, ...), as compile_tofino.sh makes them.  SIZES.json is for the controller:
stages, and of each table entries, TCAM rows, SRAM blocks; of exact matches the fewest ways in a stage, and the room that all ways have.  In REPORT.md, all between the two marker lines is replaced.
"""

import json
import pathlib
import re
import sys

ROLES = ("core", "aggregation", "edge", "single", "folded")
CHIPS = {  # stages, SRAM blocks a stage, TCAM blocks a stage
    "tofino": ("Tofino 1", 12, 80, 24),
    "tofino2": ("Tofino 2", 20, 80, 24),
}
TCAM_ROWS = 512
BLOCK_WORDS, BLOCK_BITS = 1024, 128
BEGIN, END = "<!-- compiled -->", "<!-- /compiled -->"


def numbers(text):
    """All integers in `[ 1, [2, 3], 4..6 ]`, spans written out."""
    found = []
    for low, _, high in re.findall(r"(\d+)(\.\.(\d+))?", text):
        found.extend(range(int(low), int(high or low) + 1))
    return found


class Table:
    def __init__(self, kind, name, stage):
        self.kind, self.name, self.stage = kind, name, stage
        self.p4, self.size, self.rows, self.columns = None, None, [], []
        self.bits = set()
        self.in_hash = None  # the hash whose lines are being read
        self.groups = 0  # TCAM blocks side by side
        self.ways, self.way_blocks, self.packed, self.bits_wide = 0, 0, 0, 0  # of an exact match

    def blocks(self):
        """Memory blocks: one for each pair of row and column."""
        if not self.rows or not self.columns:
            return 0
        if len(self.columns) == 1 and len(self.rows) == 1:
            return len(self.columns[0])
        if len(self.columns) == 1:  # `column: 3` for every row
            return len(self.rows) * len(self.columns[0])
        return sum(len(column) for column in self.columns)

    def room(self):
        """Entries that an exact match has memory for: in each way blocks side by side for a word, which holds several entries."""
        side_by_side = -(-self.bits_wide // BLOCK_BITS)
        return self.way_blocks // side_by_side * BLOCK_WORDS * self.packed if self.way_blocks else 0

    def width(self):
        """TCAM blocks that one row takes: one for each group of key bytes."""
        return max(1, self.groups)


def parse(listing):
    """The tables of a listing, and the containers of each gress."""
    tables, containers = [], {"ingress": set(), "egress": set()}
    stage, table, section, gress = None, None, None, None
    for line in listing.read_text().splitlines():
        if match := re.match(r"stage (\d+) (\w+):", line):
            stage, table, gress = (match[2], int(match[1])), None, None
            continue
        if match := re.match(r"phv (\w+):", line):
            gress, stage = match[1], None
            continue
        if re.match(r"\S", line):
            stage = gress = None
            continue
        if gress:
            containers[gress].update(re.findall(r"\b(?:[TMD]?[BHW])\d+\b", line))
            continue
        if not stage:
            continue
        if match := re.match(r"  (\w+) (\S+?)(?: \d+)?:\s*$", line):
            table = Table(match[1], match[2], stage)
            tables.append(table)
            section = None
            continue
        if table is None:
            continue
        if match := re.match(r"    (\w+):(.*)$", line):
            section, rest = match[1], match[2]
            if section == "p4":
                name = re.search(r"name: ([^,} ]+)", rest)
                size = re.search(r"size: (\d+)", rest)
                hidden = "hidden: true" in rest
                table.p4 = None if hidden or not name else name[1]
                table.size = int(size[1]) if size else None
            elif section == "row":
                table.rows = numbers(rest)
            elif section == "column" and rest.strip():
                table.columns = [numbers(rest)]
            elif section == "format" and table.kind == "exact_match":
                table.packed = max(1, len(re.findall(r"match\(\d+\)", rest)))
                # Numbers in brackets name an entry, all others a bit.
                table.bits_wide = max(numbers(re.sub(r"\(\d+\)", "", rest)), default=0) + 1
            continue
        if section == "column" and (match := re.match(r"    - (.*)$", line)):
            table.columns.append(numbers(match[1]))
        elif section == "ways" and table.kind == "exact_match" and (match := re.match(r"\s+- \{.*rams: \[(.*)\]", line)):
            table.ways += 1
            table.way_blocks += match[1].count("[")
        elif section == "match" and table.kind == "ternary_match" and re.match(r"    - \{ group", line):
            table.groups += 1
        elif section == "p4" and table.p4 is None:
            if match := re.match(r"      name: (\S+)", line):
                table.p4 = match[1]
            elif match := re.match(r"      size: (\d+)", line):
                table.size = int(match[1])
        elif section == "input_xbar":
            if match := re.match(r"      hash (group )?(\d+):", line):
                table.in_hash = None if match[1] else match[2]
            elif table.in_hash is not None and (match := re.match(r"        (\d+(?:\.\.\d+)?):", line)):
                table.bits.update(numbers(match[1]))
            elif re.match(r"      \S", line):
                table.in_hash = None
    return tables, containers


def measure(folder):
    """Of a folded switch, what its other pipes take is beside it, and its tables are those of all."""
    used = measure_pipe(folder / "pipe")
    if (folder / "second_pipe").exists():
        second = measure_pipe(folder / "second_pipe")
        used["tables"] = dict(sorted((used["tables"] | second.pop("tables")).items()))
        used["second_pass"] = second
    return used


def measure_pipe(folder):
    tables, containers = parse(folder / "fatbtree_tna.bfa")
    used = {"stages": {}, "sram_blocks": 0, "tcam_blocks": 0, "hash_bits": 0}
    named = {}
    owner = {}
    for table in tables:
        gress, stage = table.stage
        used["stages"][gress] = max(used["stages"].get(gress, 0), stage + 1)
        kind = "tcam_blocks" if table.kind == "ternary_match" else "sram_blocks"
        blocks = table.blocks()
        used[kind] += blocks
        used["hash_bits"] += len(table.bits)
        if table.kind in ("exact_match", "ternary_match", "hash_action") and table.p4:
            name = ".".join(table.p4.split(".")[1:])  # without the control's own name
            owner[table.name.split("$")[0]] = name
            entry = named.setdefault(name, {"entries": 0, "sram_blocks": 0, "tcam_blocks": 0, "stages": []})
            entry["entries"] = max(entry["entries"], table.size or 0)
            entry["stages"].append(stage)
            if table.ways:
                entry["ways"] = min(entry.get("ways", table.ways), table.ways)
                entry["room"] = entry.get("room", 0) + table.room()
            if kind == "tcam_blocks" and blocks:
                entry["tcam_rows"] = entry.get("tcam_rows", 0) + blocks // table.width() * TCAM_ROWS
    for table in tables:
        name = owner.get(table.name.split("$")[0])
        if name:
            kind = "tcam_blocks" if table.kind == "ternary_match" else "sram_blocks"
            named[name][kind] += table.blocks()
    used["phv_containers"] = {gress: len(found) for gress, found in containers.items()}
    used["tables"] = dict(sorted(named.items()))
    return used


def report(sizes):
    lines = [f"Compiled by p4c {sizes['compiler']} with its Tofino back end (`p4c-barefoot`, `bfas`).", ""]
    lines += [
        "| chip | role | stages in / eg | SRAM blocks | TCAM blocks | PHV containers in / eg | hash bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for chip, (name, stages, sram, tcam) in CHIPS.items():
        for role in ROLES:
            first = sizes["chips"].get(chip, {}).get(role, {})
            pipes = {role: first, f"{role}, its second pass": first.get("second_pass")}
            for what, used in pipes.items():
                if not used:
                    continue
                phv = used["phv_containers"]
                lines.append(
                    f"| {name} | {what} | {used['stages']['ingress']} / {used['stages']['egress']} of {stages} "
                    f"| {used['sram_blocks']} of {stages * sram} | {used['tcam_blocks']} of {stages * tcam} "
                    f"| {phv['ingress']} / {phv['egress']} | {used['hash_bits']} |"
                )
    for chip, (name, *_) in CHIPS.items():
        if chip not in sizes["chips"]:
            continue
        lines += ["", f"### {name}, tables", "", "| role | table | entries | room | ways | SRAM blocks | TCAM blocks | TCAM rows | stages |", "|---|---|---|---|---|---|---|---|---|"]
        for role in ROLES:
            for table, of in sizes["chips"].get(chip, {}).get(role, {}).get("tables", {}).items():
                if "_compare_" in table:
                    continue
                stages = ", ".join(str(stage) for stage in of["stages"])
                rows = of.get("tcam_rows", "")
                lines.append(f"| {role} | `{table}` | {of['entries']} | {of.get('room', '')} | {of.get('ways', '')} | {of['sram_blocks']} | {of['tcam_blocks'] or ''} | {rows} | {stages} |")
    return lines


def main():
    folder, sizes_file, report_file, compiler = sys.argv[1:]
    sizes_path, report_path = pathlib.Path(sizes_file), pathlib.Path(report_file)
    known = json.loads(sizes_path.read_text())["chips"] if sizes_path.exists() else {}
    for chip in CHIPS:
        for role in ROLES:
            compiled = pathlib.Path(folder) / f"{chip}-{role}"
            if (compiled / "pipe" / "tofino.bin").exists() or (compiled / "pipe" / "tofino2.bin").exists():
                known.setdefault(chip, {})[role] = measure(compiled)
    for chip, roles in known.items():
        name, stages, sram, tcam = CHIPS[chip]
        for role, used in roles.items():
            for pipe in (used, used.get("second_pass", used)):
                if max(pipe["stages"].values()) > stages:
                    sys.exit(f"{role} does not fit {name}: {pipe['stages']} of {stages} stages; make tables smaller in tna_sizes.p4")
    sizes = {"compiler": compiler, "chips": {chip: {role: known[chip][role] for role in ROLES if role in known[chip]} for chip in CHIPS if chip in known}}
    sizes_path.write_text(json.dumps(sizes, indent=1) + "\n")
    text = report_path.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    report_path.write_text(before + BEGIN + "\n" + "\n".join(report(sizes)) + "\n" + END + after)


if __name__ == "__main__":
    main()
