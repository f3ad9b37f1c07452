#!/usr/bin/env bash
# Soaks a cluster of processes for each structure, on one memory server and on two: short sessions, clients and memory servers that are
# killed, restarts, churn of values of 8 to 100,000 bytes. Every answer is checked. At the end the room in use, and that of the data folders,
# is compared with what the live data need in a new cluster, plus a share: SHARE in soak.py, where it says what was measured.
#
#     scripts/soak.sh                    20 minutes of work, all structures; looking at the room takes two minutes more for each
#     scripts/soak.sh 6 tree 2           6 minutes, trees on two servers only; also hash, dolphin
#     SOAK_SEED=7 scripts/soak.sh 6      the same draws again; times differ
#     SOAK_ROUNDS=34 scripts/soak.sh     ends each cluster's work after 34 rounds
#     SOAK_POWER=1 scripts/soak.sh       with `--sync 1`, and power failures: folders lie on a disk that loses what was not synced
#                                        (losing_disk.py). What was acknowledged more than that ago must be there; at 0, all of it
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
