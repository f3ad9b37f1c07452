#!/usr/bin/env bash
# Compiles the data plane and records what it was compiled from.  Needs p4c (https://github.com/p4lang/p4c) on the PATH.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v p4c-bm2-ss >/dev/null; then
    echo "p4c-bm2-ss is not on the PATH: install p4c with its BMv2 back end" >&2
    exit 1
fi

p4c-bm2-ss --std p4-16 -o build/fatbtree_v1model.json.new \
    --p4runtime-files build/fatbtree_v1model.p4info.txtpb fatbtree_v1model.p4
# The compiler writes source positions with the paths of the machine it runs on; the program does not need them.
python3 - build/fatbtree_v1model.json.new build/fatbtree_v1model.json <<'PYTHON'
import json, sys

def strip(value):
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in ("source_info", "program")}
    if isinstance(value, list):
        return [strip(v) for v in value]
    return value

with open(sys.argv[1]) as source, open(sys.argv[2], "w") as target:
    json.dump(strip(json.load(source)), target, indent=1)
    target.write("\n")
PYTHON
rm build/fatbtree_v1model.json.new
sha256sum include/*.p4 *.p4 > build/sources.sha256
p4c-bm2-ss --version 2>&1 | grep -i version > build/COMPILER
