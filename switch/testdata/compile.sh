#!/usr/bin/env bash
# Compiles service.p4 for the P4Runtime service's tests. Needs p4c-bm2-ss (https://github.com/p4lang/p4c) on the PATH.
set -euo pipefail
cd "$(dirname "$0")"

p4c-bm2-ss --std p4-16 -o service.json.new --p4runtime-files service.p4info.txtpb service.p4
# The compiler writes source positions with the paths of the machine it runs on; the program does not need them.
python3 - <<'PYTHON'
import json

def strip(value):
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in ("source_info", "program")}
    if isinstance(value, list):
        return [strip(v) for v in value]
    return value

with open("service.json.new") as source, open("service.json", "w") as target:
    json.dump(strip(json.load(source)), target, indent=1)
    target.write("\n")
PYTHON
rm service.json.new
