#!/usr/bin/env bash
# Compiles the programs for the P4Runtime service's tests. Needs p4c-bm2-ss (https://github.com/p4lang/p4c) on the PATH.
set -euo pipefail
cd "$(dirname "$0")"

for name in service packets; do
  p4c-bm2-ss --std p4-16 -o $name.json.new --p4runtime-files $name.p4info.txtpb $name.p4
done
# The compiler writes source positions with the paths of the machine it runs on; the program does not need them.
python3 - <<'PYTHON'
import json

def strip(value):
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in ("source_info", "program")}
    if isinstance(value, list):
        return [strip(v) for v in value]
    return value

for name in ("service", "packets"):
    with open(name + ".json.new") as source, open(name + ".json", "w") as target:
        json.dump(strip(json.load(source)), target, indent=1)
        target.write("\n")
PYTHON
rm service.json.new packets.json.new
