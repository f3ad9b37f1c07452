#!/bin/sh
# What cargo calls instead of the compiler (RUSTC_WRAPPER, set by scripts/fuzz.sh): the crates that are fuzzed get libFuzzer's
# instrumentation, the others are built as they are, which takes half the time and leaves their noise out of the coverage.
set -eu
case "${CARGO_PKG_NAME-}" in
fatbtree-wire | fatbtree-query | fatbtree-switch | fatbtree-soft-nic) compares=-Cllvm-args=-sanitizer-coverage-trace-compares ;;
# What lies after, and the targets themselves: where they go is of use, what they compare is not.
fatbtree-memserver | fatbtree-blink | fatbtree-remote-memory | fatbtree-fuzz) compares= ;;
*) exec "$@" ;;
esac
case " $* " in
*" --crate-name build_script_build "*) exec "$@" ;;
esac
exec "$@" -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    ${compares:+"$compares"} \
    --cfg fuzzing
