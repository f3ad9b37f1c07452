#!/usr/bin/env bash
# Checks this code against software of other projects: scapy, p4runtime-shell, and Linux's soft RoCE in two emulated
# machines behind our switch, driven by a C program, by our verbs and by our roles.  One line per check; ends with 1 if any fails.  What
# cannot run fails, nothing is skipped.
#
#   scripts/interop_lab.sh                                 installs what is missing (Debian 12, as root), builds, checks
#   FATBTREE_BIN=target/release/fatbtree scripts/interop_lab.sh      with a binary built before, with the feature ibverbs; examples are
#                                                                    built all the same
#   FATBTREE_PROFILE=release scripts/interop_lab.sh        builds with another cargo profile than dev
#
# Everything fetched or made lies in target/interop-lab (or $CARGO_TARGET_DIR/interop-lab): logs there, too.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/interop-lab"
work=$(cd "$target/interop-lab" && pwd)
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python
apt_get() { apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq "$@"; }

failures=0
began=$SECONDS
# check NAME COMMAND...: one line on success, the reason and the log's end on failure.  Never call it in an `if`, `&&` or `||`:
# there, bash would not stop at the first failing command of the function it runs.
check() {
    local name=$1 log started=$SECONDS
    log="$work/$(tr -cs 'a-z0-9\n' '-' <<<"${name,,}").log"
    shift
    set +e
    (
        set -e
        "$@"
    ) >"$log" 2>&1 </dev/null
    local status=$?
    set -e
    if [ $status -eq 0 ]; then
        echo "ok    $name ($((SECONDS - started)) s)"
    else
        failures=$((failures + 1))
        echo "FAIL  $name: $(tail -n 1 "$log") (status $status, log: $log)"
        tail -n 15 "$log" | sed 's/^/      | /'
    fi
}

finish() {
    if [ "$failures" -gt 0 ]; then
        echo "interop lab: FAILED ($((SECONDS - began)) s)"
        exit 1
    fi
}

# need NAME COMMAND...: a check without which the others cannot run.
need() {
    check "needs: $1" "${@:2}"
    finish
}

# --- what it needs ------------------------------------------------------------------------------------------------------

# package:file-or-command that shows that it is there
needs="qemu-system-x86:qemu-system-x86_64 tshark:tshark perftest:ib_read_lat ibverbs-utils:ibv_rc_pingpong rdmacm-utils:rping iproute2:rdma busybox-static:busybox kmod:depmod gcc:gcc binutils:strip
       libc6-dev:/usr/include/stdio.h libibverbs-dev:/usr/include/infiniband/verbs.h ibverbs-providers:/etc/libibverbs.d/rxe.driver
       libc-bin:ldd dpkg:dpkg-deb ca-certificates:/etc/ssl/certs/ca-certificates.crt"

missing() {
    local need package probe
    for need in $needs; do
        package=${need%%:*} probe=${need#*:}
        case $probe in
        /*) [ -e "$probe" ] || echo "$package" ;;
        *) PATH=$PATH:/usr/sbin:/sbin command -v "$probe" >/dev/null || echo "$package" ;;
        esac
    done
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    # busybox without "static" would need libraries in the guest.
    if command -v busybox >/dev/null && ldd "$(command -v busybox)" >/dev/null 2>&1; then echo busybox-static; fi
}

packages() {
    local lacking
    lacking=$(missing | sort -u | tr '\n' ' ')
    if [ -n "$lacking" ]; then
        if [ "$(id -u)" -ne 0 ]; then
            echo "not root and packages are missing: sudo apt-get install --no-install-recommends $lacking"
            return 1
        fi
        echo "installing $lacking"
        apt_get update
        # shellcheck disable=SC2086 # a list
        apt_get install -y --no-install-recommends $lacking
        lacking=$(missing | sort -u | tr '\n' ' ')
        [ -z "$lacking" ] || { echo "still missing after the installation: $lacking"; return 1; }
    fi
    qemu-system-x86_64 -netdev help | grep -qx dgram || {
        echo "$(qemu-system-x86_64 --version | head -n 1) has no -netdev dgram: QEMU 7.2 or later is needed"
        return 1
    }
}

python_packages() {
    local wanted
    wanted=$(sha256sum <scripts/requirements.txt)
    if [ "$(cat "$work/venv/installed" 2>/dev/null)" != "$wanted" ]; then
        rm -rf "$work/venv"
        python3 -m venv "$work/venv"
        "$work/venv/bin/pip" install --quiet --retries 3 -r scripts/requirements.txt
        echo "$wanted" >"$work/venv/installed"
    fi
}

# Debian's kernel for the guests: fetched and unpacked, never installed; the folders of modules that guests load something of.
module_folders="crypto drivers/infiniband drivers/net/*.ko drivers/virtio fs/configfs lib net"
guest_kernel() {
    local package wanted
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    if [ -z "$package" ]; then
        [ "$(id -u)" -eq 0 ] || { echo "apt knows no linux-image-amd64: run apt-get update as root"; return 1; }
        apt_get update
        package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    fi
    wanted="$package: $module_folders"
    if [ "$(cat "$work/kernel/unpacked" 2>/dev/null)" != "$wanted" ]; then
        rm -rf "$work/kernel" "$work/deb"
        mkdir -p "$work/kernel" "$work/deb"
        # A list of packages that is older than the archive names files that are gone.
        (cd "$work/deb" && { apt_get download "$package" || { apt_get update && apt_get download "$package"; }; })
        # shellcheck disable=SC2086,SC2046 # lists; tar reads the patterns, not the shell
        dpkg-deb --fsys-tarfile "$work"/deb/*.deb | (set -f && tar -x -C "$work/kernel" --wildcards ./boot './lib/modules/*/modules.*' \
            $(printf './lib/modules/*/kernel/%s ' $module_folders))
        PATH=$PATH:/usr/sbin:/sbin depmod -b "$work/kernel" "${package#linux-image-}"
        rm -rf "$work/deb"
        echo "$wanted" >"$work/kernel/unpacked"
    fi
}

case ${FATBTREE_PROFILE:-dev} in dev) folder=debug ;; *) folder=$FATBTREE_PROFILE ;; esac
binary=${FATBTREE_BIN:-}
build() {
    local wanted=(--example verbs_lab --example udp_memserver --example lab_controller --example every_operation --example rping)
    [ -n "$binary" ] || wanted+=(--bin fatbtree)
    # All at once and of the whole workspace, as the tests are built: for another set of packages cargo chooses other features of what
    # they share, and compiles that anew.
    cargo build --quiet --profile "${FATBTREE_PROFILE:-dev}" --workspace --features fatbtree-cli/ibverbs "${wanted[@]}"
    gcc -O2 -Wall -Wextra -Werror -o "$work/index_peer" scripts/rxe_guest/index_peer.c -libverbs
    gcc -O2 -Wall -Wextra -Werror -o "$work/forge" scripts/rxe_guest/forge.c
    # The guests' initramfs lies in their memory: no symbols.
    strip -o "$work/verbs_lab" "$target/$folder/examples/verbs_lab"
    strip -o "$work/every_operation" "$target/$folder/examples/every_operation"
}

# --- the checks ---------------------------------------------------------------------------------------------------------

icrc() { "$work/venv/bin/python3" scripts/icrc_vectors.py --check fabric/wire/tests/data/scapy_icrc.txt; }

# What Wireshark says of packets that only this project speaks, by our dissector: of each its protocol, key, levels walked, line of the slice,
# RETH's address, operation, status, records.
wireshark() {
    cargo run --quiet --profile "${FATBTREE_PROFILE:-dev}" -p fatbtree-wire --example capture -- "$work/capture.pcap"
    tshark -X lua_script:scripts/fatbtree.lua -r "$work/capture.pcap" -T fields -E separator=/s -E aggregator=/ -e _ws.col.Protocol \
        -e fatbtree.index.key -e fatbtree.index.levels -e fatbtree.index.slice -e infiniband.reth.va -e fatbtree.query.op -e fatbtree.query.status \
        -e fatbtree.query.record.key -e fatbtree.query.record.value 2>"$work/tshark.log" | sed 's/ *$//' >"$work/wireshark.txt"
    cat "$work/tshark.log"
    diff - "$work/wireshark.txt" <<'EXPECTED'
RRoCE    0x0123456789abcdef
Index READ 0x0123456789abcdef 0 2 0x0003000000001000
Index READ 0x0123456789abcdef 2 2 0x0003000000042400
RRoCE    0x0003000000042480
Fat-B+Tree query 0x0123456789abcdef 2 0  2
Fat-B+Tree query 0x0123456789abcdef 0 0  2 0
Fat-B+Tree query 0x0123456789abcdef 0 0  3
Fat-B+Tree query 0x0123456789abcdef 0 0  3
Fat-B+Tree query 0x0123456789abcdef 0 0  3 3
Fat-B+Tree query 0x0123456789abcdef 0 0  6
Fat-B+Tree query 0x0123456789abcdef 0 0  6 0 0x0123456789abcdef 6f6e65
EXPECTED
}

p4runtime() {
    local address=""
    "$binary" switch --grpc 127.0.0.1:0 --device-id 1 --seconds 300 >"$work/switch-p4runtime.log" 2>&1 &
    switch=$! # not local: the trap runs when the function is over
    trap 'kill $switch 2>/dev/null || true' EXIT
    for _ in $(seq 100); do
        address=$(sed -n 's/.*controller on \([0-9.]*:[0-9]*\).*/\1/p' "$work/switch-p4runtime.log")
        [ -z "$address" ] || break
        kill -0 $switch 2>/dev/null || break
        sleep 0.1
    done
    [ -n "$address" ] || { echo "the switch did not start: $(tail -n 1 "$work/switch-p4runtime.log")"; return 1; }
    FATBTREE_INTEROP_VENV=1 timeout 180 "$work/venv/bin/python3" scripts/interop_p4runtime_shell.py --grpc "$address" --device-id 1
}

need "Debian packages" packages
need "Python packages" python_packages
need "guest kernel" guest_kernel
need "fatbtree and the guests' programs" build
binary=${binary:-$target/$folder/fatbtree}

check "ICRC: the stored vectors are what scapy makes" icrc
check "Wireshark: our dissector tells what index reads and queries are" wireshark
check "P4Runtime: p4runtime-shell programs the switch and reads it back" p4runtime
# They print their own lines.
timeout 600 "$work/venv/bin/python3" scripts/interop_rxe.py --fatbtree "$binary" --kernel "$work/kernel" \
    --peer "$work/index_peer" --verbs-lab "$work/verbs_lab" --memory-server "$target/$folder/examples/udp_memserver" \
    --controller "$target/$folder/examples/lab_controller" --rping "$target/$folder/examples/rping" --work "$work/rxe" </dev/null || failures=$((failures + 1))
timeout 900 "$work/venv/bin/python3" scripts/interop_roles.py --fatbtree "$binary" --library "$work/every_operation" --kernel "$work/kernel" \
    --work "$work/roles" </dev/null || failures=$((failures + 1))
timeout 600 "$work/venv/bin/python3" scripts/interop_hosts.py --fatbtree "$binary" --kernel "$work/kernel" --forge "$work/forge" \
    --work "$work/hosts" </dev/null || failures=$((failures + 1))

finish
echo "interop lab: all checks passed ($((SECONDS - began)) s)"
