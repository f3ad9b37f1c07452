#!/usr/bin/env bash
# Builds the Python package (a wheel below target/wheels), and tests it with the system's Python against a cluster that the tests start.
#
#     scripts/python.sh [FATBTREE]
#
# FATBTREE is the program, by default the one that `cargo build` or `cargo test` has left. PROFILE=release builds a package to give away.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
program=$(realpath "${1:-$target/debug/fatbtree}")
profile=${PROFILE:-dev}
# Debian's own, so that what is tested is what others have.
python=/usr/bin/python3

if [ "$(id -u)" = 0 ] && ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    apt-get install -y --no-install-recommends python3 python3-venv ||
        { apt-get update && apt-get install -y --no-install-recommends python3 python3-venv; }
fi
venv=$target/python-venv
[ -x "$venv/bin/maturin" ] || { "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet 'maturin>=1.9,<2' matplotlib; }

# Target folder, profile and features are those of `cargo test`: the library's crates are not compiled again.
features=()
[ "$profile" = dev ] && features=(--features as-tested)
wheels=$target/wheels
rm -rf "$wheels"
CARGO_TARGET_DIR=$target "$venv/bin/maturin" build --locked --quiet --manifest-path client/python/Cargo.toml \
    --profile "$profile" "${features[@]}" --interpreter "$python" --out "$wheels"
"$venv/bin/pip" install --quiet --force-reinstall --no-deps "$wheels"/fatbtree-*.whl
ls -l "$wheels"

cd client/python/tests
FATBTREE=$program PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m unittest --verbose
