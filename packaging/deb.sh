#!/usr/bin/env bash
# Builds the Debian package target/debian/fatbtree_*.deb. Takes dpkg-dev and python3.
#
#     packaging/deb.sh [PROGRAM]
#
# PROGRAM is one that was built already; otherwise the program is built without symbols, which takes a while.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
if [ $# = 0 ]; then
    cargo build --locked --profile dist -p fatbtree-cli
fi
program=${1:-$target/dist/fatbtree}

# What cli/Cargo.toml lists beside the program.
made=$target/debian/packaging
rm -rf "$made"
"$program" man "$made/man"
gzip -9n "$made"/man/*.1
"$program" completions bash >"$made/fatbtree.bash"
"$program" completions zsh >"$made/_fatbtree"
"$program" completions fish >"$made/fatbtree.fish"
"$program" topology example single >"$made/cluster.toml"

cargo metadata --locked --no-deps --format-version 1 | packaging/assemble_deb.py "$program" "$target/debian"
