#!/bin/sh
# What cargo calls instead of the compiler (RUSTC_WRAPPER, set by scripts/fuzz.sh): the crates that are fuzzed get libFuzzer's
# instrumentation, the others are built as they are, which takes half the time and leaves their noise out of the coverage.
set -eu
case "${CARGO_PKG_NAME-}" in
fatbtree-wire | fatbtree-query | fatbtree-memserver | fatbtree-index | fatbtree-verbs | fatbtree-switch | fatbtree-fuzz) ;;
*) exec "$@" ;;
esac
case " $* " in
*" --crate-name build_script_build "*) exec "$@" ;;
esac
exec "$@" -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    --cfg fuzzing
