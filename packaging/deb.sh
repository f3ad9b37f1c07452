#!/usr/bin/env bash
# Builds the Debian package target/debian/fatbtree_*.deb. Takes cargo-deb: cargo install cargo-deb
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --profile dist -p fatbtree-cli
target=${CARGO_TARGET_DIR:-target}
program=$target/dist/fatbtree

# What cli/Cargo.toml lists beside the program.
made=$target/dist/packaging
rm -rf "$made"
"$program" man "$made/man"
gzip -9n "$made"/man/*.1
"$program" completions bash >"$made/fatbtree.bash"
"$program" completions zsh >"$made/_fatbtree"
"$program" completions fish >"$made/fatbtree.fish"
"$program" topology example single >"$made/cluster.toml"

cargo deb --no-build --no-strip --profile dist -p fatbtree-cli
