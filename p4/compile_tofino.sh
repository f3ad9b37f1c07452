#!/usr/bin/env bash
# Compiles the data plane for Tofino, every role for both chips, and records what of it fits where.
#
#   ./compile_tofino.sh [DIR]                  keeps the whole output, with the binaries for a switch, in DIR
#   ALL_STAGES=1 ./compile_tofino.sh [DIR]     the larger tables of Tofino 1 that leave no stage free; all results, P4Info
#                                              and sizes.json too, go to DIR alone
#
# Needs p4c with its Tofino back end (https://github.com/p4lang/p4c, configured with -DENABLE_TOFINO=ON): p4c-barefoot and
# bfas on the PATH.  A quarter of an hour on one core; ROLES and CHIPS choose less.
set -euo pipefail
out=${1:-$(mktemp -d)}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"

for tool in p4c-barefoot bfas; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is not on the PATH: install p4c with its Tofino back end" >&2
        exit 1
    fi
done

build=build/tofino report=RESOURCES.md sizes=() chips="tofino tofino2"
if [ -n "${ALL_STAGES:-}" ]; then
    build=$out report=$out/RESOURCES.md sizes=(-DALL_STAGES) chips=tofino
    cp RESOURCES.md "$report"
fi
mkdir -p "$build"

compile() { # CHIP ROLE
    local chip=$1 role=$2 arch=tna number=1 upper
    local dir=$out/$chip-$role info=$build/$chip-$role.p4info.txtpb
    # Dark containers off: with them the compiler places a table of Tofino 2's edge switch twice, and stops ("Multiple tables named").
    local options=(--no-clot)
    if [ "$chip" = tofino2 ]; then arch=t2na number=2 options+=(--disable-dark-allocation); fi
    upper=$(echo "$role" | tr a-z A-Z)
    echo "compiling $role for $chip"
    rm -rf "$dir" && mkdir -p "$dir"
    # Warnings: a role does not use all controls, and const tables have the size of their entries.  Without clots, which hold on
    # Tofino 2 what no table touches: of a parser like this one the compiler's assembly lacks some.
    p4c-barefoot "${options[@]}" --target "$chip" --arch $arch --std p4-16 -D__TARGET_TOFINO__=$number -DROLE_"$upper" "${sizes[@]}" \
        --p4runtime-files "$info" --p4runtime-force-std-externs --bf-rt-schema "$dir/bfrt.json" -o "$dir" fatbtree_tna.p4 >"$dir/p4c.log" 2>&1 ||
        { grep -A8 'error:' "$dir/p4c.log" >&2; exit 1; }
    # The assembler makes the binary that goes to the switch, and refuses what cannot be.
    local assembly pipe
    for assembly in "$dir"/*/fatbtree_tna.bfa; do
        pipe=$(dirname "$assembly")
        mkdir -p "$pipe/logs"
        (cd "$pipe" && bfas -o . -l bfas.log fatbtree_tna.bfa) >"$pipe/bfas.out" 2>&1 ||
            { grep -i error "$pipe/bfas.out" >&2; exit 1; }
    done
}

for chip in ${CHIPS:-$chips}; do
    for role in ${ROLES:-core aggregation edge single folded}; do
        compile "$chip" "$role"
    done
done
python3 tofino_resources.py "$out" "$build/sizes.json" "$report" "$(p4c-barefoot --version 2>&1 | sed -n 's/^Version //p'), commit ${P4C_COMMIT:-unknown}"
sha256sum include/*.p4 *.p4 >"$build/sources.sha256"
rm -f "$build/BEHIND.md"
