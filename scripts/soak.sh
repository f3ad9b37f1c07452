#!/usr/bin/env bash
# Soaks a cluster of processes for each structure: short sessions, clients and memory servers that are killed, restarts, churn. Every answer
# is checked. At the end the room in use is compared with what the live data need in a new cluster, plus a share.
#
#     scripts/soak.sh                    20 minutes, all structures
#     scripts/soak.sh 6 tree             6 minutes, trees only; also hash, dolphin
#     SOAK_SEED=7 scripts/soak.sh 6      the same draws again; times differ
#
# FATBTREE_BIN names the program; by default it is target/debug/fatbtree. The exit code is 1 if an answer was wrong or room is lost.
set -euo pipefail
cd "$(dirname "$0")/.."

# The example has fixed ports: in a network of its own they are free.
if [ -z "${SOAK_INSIDE:-}" ] && command -v ip >/dev/null && unshare -rnm true 2>/dev/null; then
    SOAK_INSIDE=1 exec unshare -rnm "scripts/${0##*/}" "$@"
fi
[ -z "${SOAK_INSIDE:-}" ] || ip link set lo up
export FATBTREE_BIN=${FATBTREE_BIN:-${CARGO_TARGET_DIR:-target}/debug/fatbtree}
exec python3 scripts/soak.py "$@"
