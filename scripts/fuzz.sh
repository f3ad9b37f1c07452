#!/usr/bin/env bash
# Fuzzes whatever reads the query protocol, and the software NIC, guided by coverage: scripts/fuzz.sh [SECONDS [TARGET]]
#
# SECONDS: of each target, 60 if not given. TARGET: one of fuzz/targets; all if not given. What was of use is kept in fuzz/corpus,
# what has failed in fuzz/found; the exit status is 1 then. One input again: fuzz/target/release/TARGET FILE
#
# No nightly compiler and no clang: the stable compiler has LLVM's instrumentation, and libFuzzer is compiled by the C++ compiler (g++).
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
targets=(query_packet query_server query_client query_switch nic)
[ $# -lt 2 ] || targets=("$2")

export CARGO_TARGET_DIR="$PWD/fuzz/target" RUSTC_WRAPPER="$PWD/fuzz/rustc.sh"
cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml

mkdir -p fuzz/found
failed=()
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target"
    # First short inputs, which grow when they find nothing more: what one datagram does. Then long ones from the beginning: what many do.
    for grows in 100 0; do
        log="fuzz/found/$target.log"
        # An input takes milliseconds, so one of 10 s hangs; and 1 GiB is ten times what is needed.
        if ! "fuzz/target/release/$target" -max_total_time=$(((seconds + 1) / 2)) -max_len=1024 -len_control=$grows -timeout=10 \
            -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="fuzz/found/$target-" "fuzz/corpus/$target" >"$log" 2>&1; then
            failed+=("$target")
            grep -a -v -E '^#[0-9]|^INFO|NEW_FUNC|NEW_PC|^stat::' "$log" | tail -n 60
        fi
        # (grep -a: what libFuzzer says of an input may hold any bytes)
        echo "$target: $(grep -a -E '^#[0-9]+.* cov: ' "$log" | tail -n 1)"
        [[ " ${failed[*]} " != *" $target "* ]] || break
    done
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzzing has found something in: ${failed[*]}; the inputs and logs are in fuzz/found" >&2
    exit 1
fi
