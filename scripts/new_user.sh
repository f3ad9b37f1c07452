#!/usr/bin/env bash
# Types a new user's path: in a clone, README.md's two commands from nothing to a value read back; then README.md's program in a crate of
# its own, with the dependencies that docs/src/embed.md names. Between them, what scripts and operators do: commands at once, clients that are
# killed, output to a full disk, bytes in and out, and reads that hot keys answer.
#
#     scripts/new_user.sh              as a new user, who has compiled nothing yet
#     scripts/new_user.sh target/debug   with the programs in this folder, which `cargo test` has left
set -euo pipefail
cd "$(dirname "$0")/.."

# The example has fixed ports: in a network of its own they are free.
if [ -z "${NEW_USER_INSIDE:-}" ] && command -v ip >/dev/null && unshare -rn true 2>/dev/null; then
    NEW_USER_INSIDE=1 exec unshare -rn "scripts/${0##*/}" "$@"
fi
[ -z "${NEW_USER_INSIDE:-}" ] || ip link set lo up
built=${1:+$(realpath "$1")}

fail() {
    echo "new user: FAILED: $1" >&2
    exit 1
}

[ ! -e cluster.toml ] || fail "cluster.toml is there: expected a fresh clone"
folder=$(mktemp -d)
up=
cleanup() {
    [ -z "$up" ] || kill -INT "$up" 2>/dev/null || true
    rm -rf "$folder" cluster.toml
}
trap cleanup EXIT

mapfile -t typed < <(sed -n 's/ *#.*//; /^cargo run -p fatbtree/p' README.md)
[ ${#typed[@]} = 2 ] || fail "README.md: expected two lines 'cargo run -p fatbtree…', found ${#typed[@]}"

# What a line runs: itself, or the program that was built before.
program() {
    [ -z "$built" ] || set -- "$(sed "s|cargo run -p fatbtree-cli --|$built/fatbtree|; s|cargo run -p fatbtree --example |$built/examples/|" <<<"$1")"
    echo "$1"
}

echo "+ ${typed[0]}"
eval "exec $(program "${typed[0]}")" >"$folder/up.log" 2>&1 &
up=$!
until grep -qx ready "$folder/up.log"; do
    kill -0 $up 2>/dev/null || { cat "$folder/up.log"; fail "the cluster has ended"; }
    sleep 0.2
done
echo "+ ${typed[1]}"
eval "$(program "${typed[1]}")"

fatbtree=${built:-${CARGO_TARGET_DIR:-target}/debug}/fatbtree
typed() {
    echo "+ fatbtree $*" >&2
    "$fatbtree" "$@" --cluster cluster.toml
}
is() { [ "$2" = "$3" ] || fail "$1: expected $(printf %q "$3"), found $(printf %q "$2")"; }

# Values are exactly the bytes that were put; JSON has exactly the text.
typed put 1 "a b"
is "get" "$(typed get 1)" "a b"
is "get --json" "$(typed get 1 --json)" '{"key":1,"value":"a b"}'
is "get --quote" "$(typed get 1 --quote)" '"a b"'
typed put 2 --text 0xff
is "text that begins with 0x" "$(typed get 2)" 0xff
head -c 1000 /dev/urandom >"$folder/bytes"
typed put 1_000 - <"$folder/bytes"
typed get 1e3 >"$folder/found"
cmp "$folder/bytes" "$folder/found" || fail "put KEY -: other bytes came back"
typed put 4 --file "$folder/bytes"
typed get 4 | cmp "$folder/bytes" - || fail "put --file: other bytes came back"

# Commands at once, as many as a script begins.
gets=()
for n in 1 2 3 4 5; do
    "$fatbtree" get 1 --cluster cluster.toml >"$folder/get.$n" &
    gets+=($!)
done
for n in 1 2 3 4 5; do
    wait "${gets[n - 1]}" || fail "five commands at once: one of them ended with $?"
    is "five commands at once" "$(cat "$folder/get.$n")" "a b"
done

# The work is done, and what is missing is told.
code=0
typed put 5 five --json >/dev/full 2>"$folder/full" || code=$?
is "put to a full disk" "$code" 5
grep -q "error: " "$folder/full" || fail "put to a full disk: no message"
is "what was put to a full disk" "$(typed get 5)" five

# Clients that end without closing do not lock out the next one.
typed load --keys 20000 --replace
typed put 70 "a b"
for n in 1 2 3 4 5; do
    "$fatbtree" bench --cluster cluster.toml --operations 1000000000 >"$folder/bench" 2>&1 &
    bench=$!
    sleep 1
    kill -KILL $bench || fail "a bench has ended by itself: $(cat "$folder/bench")"
    wait $bench 2>/dev/null || true
done
began=$SECONDS
is "get after five clients were killed" "$(typed get 70)" "a b"
# The first of them has a session until its lease ends, 10 s after its last renewal.
[ $((SECONDS - began)) -le 9 ] || fail "after five clients were killed, a command took $((SECONDS - began)) s"

# Reads that hot keys answer are told, in a row of their own.
typed bench --operations 20000 >/dev/null
typed control reload
"$fatbtree" bench --cluster cluster.toml --operations 1000000000 >"$folder/bench" 2>&1 &
bench=$!
hot=0
for n in $(seq 100); do
    hot=$("$fatbtree" control counters --json --cluster cluster.toml | tr -d ' \n' | sed 's/.*{"table":"hotkeys","hits":\([0-9]*\),.*/\1/')
    [ "$hot" -eq 0 ] 2>/dev/null || break
    sleep 0.2
done
kill -INT $bench
wait $bench || true
[ "$hot" -gt 0 ] || fail "control counters: no reads of hot keys: $hot"

mkdir -p "$folder/mine/src"
block() { awk -v begin="\`\`\`$1" '$0 == "```" { inside = 0 } inside { print } $0 == begin { inside = 1 }' "$2"; }
{
    printf '[package]\nname = "mine"\nedition = "2024"\n[workspace]\n'
    block toml docs/src/embed.md | sed "s|path = \"../fatbtree/client\"|path = \"$PWD/client\"|"
    if [ -n "$built" ]; then
        # The features with which the tests have compiled what it depends on, as the Python package has them.
        printf '[target."cfg(unix)".dependencies]\ntokio = { version = "1", features = ["io-std", "test-util"] }\n'
        sed -n '/^\[dependencies\]/,/^\[profile/s/, optional = true//p' client/python/Cargo.toml | sed "s|\"\.\./\.\./|\"$PWD/|"
    fi
} >"$folder/mine/Cargo.toml"
block rust README.md >"$folder/mine/src/main.rs"
grep -q "path = \"$PWD/client\"" "$folder/mine/Cargo.toml" || fail "docs/src/embed.md does not name the crate's path"
grep -q 'fatbtree::connect' "$folder/mine/src/main.rs" || fail "README.md has no program"
# What was compiled with the repository's versions and profile is not compiled again: cargo takes the profile from .cargo/config.toml here.
cp Cargo.lock "$folder/mine/"
echo "+ cargo run, in a crate of its own"
CARGO_NET_OFFLINE=true CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target} \
    cargo run --manifest-path "$folder/mine/Cargo.toml"

kill -INT $up
wait $up || fail "the cluster ended badly: $(tail -n 1 "$folder/up.log")"
up=
echo "new user: a program has read a value back, and so has one in a crate of its own"
