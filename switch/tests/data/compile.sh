#!/usr/bin/env bash
# Compiles this folder's programs for the engine's tests. Needs p4c-bm2-ss (https://github.com/p4lang/p4c) on the PATH.
set -euo pipefail
cd "$(dirname "$0")"

for program in *.p4; do
    name="${program%.p4}"
    p4c-bm2-ss --std p4-16 -o "$name.json.new" "$program"
    # The compiler writes source positions with the paths of the machine it runs on; the programs do not need them.
    python3 - "$name" <<'PYTHON'
import json, sys

def strip(value):
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in ("source_info", "program")}
    if isinstance(value, list):
        return [strip(v) for v in value]
    return value

name = sys.argv[1]
with open(name + ".json.new") as source, open(name + ".json", "w") as target:
    json.dump(strip(json.load(source)), target, separators=(",", ":"))
    target.write("\n")
PYTHON
    rm "$name.json.new"
done
