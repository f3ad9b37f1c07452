//! Everything that a person types in the guide is run as it stands there: the code blocks and command lines of `README.md`, of the pages in
//! `docs/src/` and of `scripts/deploy-tofino.md`, and the examples of every `--help`.
//!
//! A line that is not listed here fails the test, and so does one listed here that is nowhere in the guide: a new example needs a place, in the
//! order in which lines build on each other. What has to be otherwise in a test (sizes, folders, ports) is said with the line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::http::get;
use crate::common::processes::{Role, on_own_ports, ports};
use crate::common::repository::{read, root};
use crate::common::run;
use fatbtree_topology::Cluster;

/// How a line is run. The words after it take the place of the line's, and are other sizes, folders or ports.
enum How {
    /// To its end; it succeeds.
    Ends(Words),
    /// Until a line has come that contains this, and Ctrl-C; then it ends well.
    Serves(&'static str, Words),
    /// The same, but it goes on beside the lines after it.
    Stays(&'static str, Words),
    /// Core-0's metrics are fetched.
    Fetches,
}

type Words = &'static [(&'static str, &'static str)];
type Line = (&'static str, How);

use How::{Ends, Fetches, Serves, Stays};

/// Lines about one cluster, in this order.
const CLUSTER: &[Line] = &[
    ("fatbtree topology example > cluster.toml", Ends(&[])),
    ("fatbtree up cluster.toml", Serves("ready", &[])),
    ("fatbtree up cluster.toml --keys 1000000", Serves("ready", &[("1000000", "20000")])),
    ("fatbtree memserver left --cluster cluster.toml", Serves("gRPC on", &[])),
    (
        "fatbtree memserver left --cluster cluster.toml --keys 1000000",
        Serves("gRPC on", &[("1000000", "20000")]),
    ),
    (
        "fatbtree memserver left --cluster cluster.toml --data /var/lib/fatbtree/left",
        Serves("gRPC on", &[("/var/lib/fatbtree", "var-lib")]),
    ),
    (
        "fatbtree memserver left --cluster cluster.toml --data /var/lib/fatbtree/left --sync 0",
        Serves("gRPC on", &[("/var/lib/fatbtree", "var-lib")]),
    ),
    ("fatbtree memserver left --cluster cluster.toml --leaves buckets", Serves("gRPC on", &[])),
    ("fatbtree memserver left --cluster cluster.toml --inline 32", Serves("gRPC on", &[])),
    (
        "fatbtree up cluster.toml --data /var/tmp/fatbtree --sync 0",
        Serves("ready", &[("/var/tmp", "var-tmp-synced")]),
    ),
    ("fatbtree memserver left --cluster cluster.toml --serve queries --workers 4", Serves("4 workers", &[])),
    ("fatbtree up cluster.toml --serve queries", Serves("ready", &[])),
    ("fatbtree switch core-0 --cluster cluster.toml", Serves("waits for a controller", &[])),
    ("fatbtree switch core-0 --cluster cluster.toml --threads 4", Serves("waits for a controller", &[])),
    ("fatbtree controller --cluster cluster.toml", Serves("controller on", &[])),
    ("fatbtree controller --cluster cluster.toml --state plans", Serves("controller on", &[])),
    ("fatbtree controller --cluster cluster.toml --standby", Serves("controller on", &[])),
    ("fatbtree controller --cluster cluster.toml --take-over", Serves("controller on", &[])),
    // (for the line with --protocol query)
    (
        "fatbtree up cluster.toml --data /var/tmp/fatbtree",
        Stays("ready", &[("/var/tmp", "var-tmp"), ("--data", "--serve queries --data")]),
    ),
    ("fatbtree load --cluster cluster.toml --keys keys.txt", Ends(&[])),
    ("fatbtree load --cluster cluster.toml --keys ycsb.out", Ends(&[("ycsb.out", "ycsb.out --replace")])),
    (
        "fatbtree load --cluster cluster.toml --keys people.csv",
        Ends(&[("people.csv", "people.csv --replace")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --keys people.csv",
        Ends(&[("100000", "1000")]),
    ),
    ("fatbtree trace make --operations 100000 --keys 10000 --out made.trace", Ends(&[])),
    (
        "fatbtree trace make --operations 100000 --keys 10000 --gets 0.3 --deletes 0.05 --out writes.trace",
        Ends(&[]),
    ),
    ("fatbtree trace show made.trace", Ends(&[])),
    (
        "fatbtree load --cluster cluster.toml --trace made.trace",
        Ends(&[("made.trace", "writes.trace --replace")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --trace made.trace",
        Ends(&[("20000", "10000"), ("made.trace", "writes.trace")]),
    ),
    ("fatbtree load --cluster cluster.toml --trace made.trace --replace", Ends(&[])),
    (
        "fatbtree bench --cluster cluster.toml --trace made.trace --operations 20000",
        Ends(&[("20000", "2000")]),
    ),
    (
        "fatbtree load --cluster cluster.toml --keys 1e6 --inline 32 --leaves buckets",
        Ends(&[("1e6", "1e4 --replace")]),
    ),
    ("fatbtree load --cluster cluster.toml --empty left", Ends(&[("left", "left --replace")])),
    (
        "fatbtree load --cluster cluster.toml --keys names.csv --key-type bytes",
        Ends(&[("names.csv", "names.csv --replace")]),
    ),
    ("fatbtree get user:4711 --cluster cluster.toml", Ends(&[])),
    ("fatbtree put user:4711 hello --cluster cluster.toml", Ends(&[])),
    ("fatbtree scan --prefix user: --cluster cluster.toml", Ends(&[])),
    ("fatbtree scan user:1..user:3 --cluster cluster.toml", Ends(&[])),
    ("fatbtree scan --bytes --cluster cluster.toml", Ends(&[])),
    (
        "fatbtree load --cluster cluster.toml --keys 1e6 --key-type bytes --key-shape uuid",
        Ends(&[("1e6", "1e4 --replace")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --workload a --key-shape uuid",
        Ends(&[("100000", "1000")]),
    ),
    (
        "fatbtree load --cluster cluster.toml --keys 1e6 --key-type bytes --key-shape url",
        Ends(&[("1e6", "1e4 --replace")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --key-shape url",
        Ends(&[("100000", "1000")]),
    ),
    ("fatbtree load --cluster cluster.toml --trace made.trace --replace --key-type bytes", Ends(&[])),
    ("fatbtree load --cluster cluster.toml --keys 1e6", Ends(&[("1e6", "1e5 --replace")])),
    ("fatbtree load --cluster cluster.toml --keys 1e6 --replace", Ends(&[("1e6", "1e5")])),
    ("fatbtree bench --cluster cluster.toml --operations 100000", Ends(&[("100000", "10000")])),
    ("fatbtree bench --cluster cluster.toml --operations 100000 --out one.json", Ends(&[("100000", "1000")])),
    (
        "fatbtree bench --cluster cluster.toml --client one --operations 100000 --out one.json",
        Ends(&[("100000", "1000"), ("--client one ", "")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --client two --operations 100000 --out two.json",
        Ends(&[("100000", "1000"), ("--client two ", "")]),
    ),
    ("fatbtree merge one.json two.json", Ends(&[])),
    ("fatbtree merge one.json two.json --json", Ends(&[])),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --workload a --json result.json",
        Ends(&[("100000", "10000")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --protocol query",
        Ends(&[("100000", "10000")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --protocol query --root-to-leaf",
        Ends(&[("100000", "10000")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 10000 --workload e --scan-parts 8",
        Ends(&[("10000", "1000")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --workload a --contention smart",
        Ends(&[("20000", "2000")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --entry-cache 1M",
        Ends(&[("100000", "10000")]),
    ),
    ("fatbtree bench --cluster cluster.toml --operations 20000 --rate 5000", Ends(&[("20000", "2000")])),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --ramp --picture ramp.svg",
        Ends(&[("20000", "2000")]),
    ),
    ("fatbtree put 4711 hello --cluster cluster.toml", Ends(&[])),
    ("fatbtree put 4711 0x00ff --cluster cluster.toml", Ends(&[])),
    ("fatbtree put 4711 --text 0x00ff --cluster cluster.toml", Ends(&[])),
    ("fatbtree put 4711 --file picture.png --cluster cluster.toml", Ends(&[("picture.png", "people.csv")])),
    ("printf hello | fatbtree put 4711 - --cluster cluster.toml", Ends(&[])),
    ("fatbtree get 4711 --cluster cluster.toml > value", Ends(&[])),
    ("fatbtree get 4711 --cluster cluster.toml", Ends(&[])),
    ("fatbtree get 0x1267 --cluster cluster.toml --json", Ends(&[])),
    ("fatbtree scan 4000..5000 --cluster cluster.toml --limit 10", Ends(&[])),
    ("fatbtree scan ..5000 --cluster cluster.toml --backward --limit 10", Ends(&[])),
    ("fatbtree scan 4000..=4999 --cluster cluster.toml --csv", Ends(&[("4000..=4999", "1..=2")])),
    ("fatbtree scan --cluster cluster.toml --csv > all.csv", Ends(&[])),
    ("fatbtree delete 4711 --cluster cluster.toml", Ends(&[])),
    ("fatbtree shell --cluster cluster.toml", Ends(&[])),
    ("fatbtree control status --cluster cluster.toml", Ends(&[])),
    ("fatbtree control wait-ready --cluster cluster.toml", Ends(&[])),
    ("fatbtree control status --cluster cluster.toml --watch", Serves("in the last second", &[])),
    ("fatbtree control plan --cluster cluster.toml --save p.json", Ends(&[])),
    ("fatbtree control diff --cluster cluster.toml", Ends(&[])),
    ("fatbtree control reload --cluster cluster.toml", Ends(&[])),
    ("fatbtree control reload --cluster cluster.toml --plan p.json", Ends(&[])),
    ("fatbtree control rollback --cluster cluster.toml", Ends(&[])),
    ("fatbtree control show --cluster cluster.toml", Ends(&[])),
    ("fatbtree control explain 4711 --cluster cluster.toml", Ends(&[])),
    ("fatbtree control counters --cluster cluster.toml", Ends(&[])),
    ("fatbtree control drops --cluster cluster.toml", Ends(&[])),
    ("fatbtree control sync --cluster cluster.toml", Ends(&[])),
    (
        "fatbtree control page --cluster cluster.toml",
        Serves("page at", &[("page ", "page --listen 127.0.0.1:0 ")]),
    ),
    (
        "fatbtree control page --cluster cluster.toml --listen 127.0.0.1:8088",
        Serves("page at", &[("127.0.0.1:8088", "127.0.0.1:0")]),
    ),
    ("curl http://127.0.0.1:9800/metrics", Fetches),
];

/// Lines about a cluster with a hash table, in this order.
const HASH: &[Line] = &[
    (
        "fatbtree memserver left --cluster cluster.toml --structure hash",
        Serves("its part of a hash table", &[]),
    ),
    ("fatbtree up cluster.toml --structure hash", Stays("ready", &[])),
    ("fatbtree load --cluster cluster.toml --keys 1e5 --structure hash", Ends(&[("1e5", "1e4")])),
    ("fatbtree load --cluster cluster.toml --keys 1e5 --structure hash --replace", Ends(&[("1e5", "1e4")])),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --structure hash --workload b",
        Ends(&[("20000", "2000")]),
    ),
    ("fatbtree shell --cluster cluster.toml --structure hash", Ends(&[])),
    (
        "fatbtree load --cluster cluster.toml --keys names.csv --key-type bytes --structure hash",
        Ends(&[("--structure", "--replace --structure")]),
    ),
    ("fatbtree get user:4711 --cluster cluster.toml --structure hash", Ends(&[])),
    ("fatbtree scan --bytes --cluster cluster.toml --structure hash", Ends(&[])),
];

/// Lines about a cluster with a Dolphin index, in this order.
const DOLPHIN: &[Line] = &[
    (
        "fatbtree memserver left --cluster cluster.toml --structure dolphin",
        Serves("its part of a Dolphin index", &[]),
    ),
    ("fatbtree up cluster.toml --structure dolphin", Stays("ready", &[])),
    ("fatbtree load --cluster cluster.toml --keys 1e5 --structure dolphin", Ends(&[("1e5", "1e4")])),
    (
        "fatbtree load --cluster cluster.toml --keys 1e5 --structure dolphin --replace",
        Ends(&[("1e5", "1e4")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --structure dolphin --cache 100K",
        Ends(&[("20000", "2000")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --structure dolphin --workload e",
        Ends(&[("20000", "1000")]),
    ),
    ("fatbtree shell --cluster cluster.toml --structure dolphin", Ends(&[])),
];

/// Lines about a cluster with tables of transactions, in this order.
const DTX: &[Line] = &[
    (
        "fatbtree memserver left --cluster cluster.toml --structure dtx",
        Serves("its part of a transactional table", &[]),
    ),
    ("fatbtree up cluster.toml --structure dtx", Stays("ready", &[])),
    ("fatbtree load --cluster cluster.toml --keys 1e5 --structure dtx", Ends(&[("1e5", "1e4")])),
    ("fatbtree load --cluster cluster.toml --keys 1e5 --structure dtx --replace", Ends(&[("1e5", "1e4")])),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --structure dtx --workload b",
        Ends(&[("20000", "2000")]),
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 20000 --structure dtx --workload smallbank",
        Ends(&[("20000", "2000")]),
    ),
    ("fatbtree shell --cluster cluster.toml --structure dtx", Ends(&[])),
];

const SMALL: (&str, &str) = ("demo", "demo --keys 5000 --lookups 500");
const FEW: (&str, &str) = ("figures", "figures --keys 1000 --window 100");

/// Lines that need no cluster, in this order.
const ALONE: &[Line] = &[
    ("fatbtree topology show", Ends(&[])),
    ("fatbtree topology show --svg network.svg", Ends(&[])),
    ("fatbtree topology example single > single.toml", Ends(&[])),
    ("fatbtree topology example --testbed > testbed.toml", Ends(&[])),
    ("fatbtree topology check testbed.toml", Ends(&[])),
    ("fatbtree topology show --cluster testbed.toml", Ends(&[])),
    ("fatbtree topology show --cluster testbed.toml --svg testbed.svg", Ends(&[])),
    ("fatbtree topology certificates --cluster testbed.toml", Ends(&[])),
    ("fatbtree topology certificates --cluster cluster.toml", Ends(&[])),
    ("fatbtree switch", Serves("waits for a controller", &[("switch", "switch --grpc 127.0.0.1:$PORT")])),
    (
        "fatbtree switch --grpc 127.0.0.1:50051 --device-id 7",
        Serves("waits for a controller", &[("50051", "$PORT")]),
    ),
    (
        "fatbtree switch --port 0=127.0.0.1:6000,127.0.0.1:7000",
        Serves(
            "waits for a controller",
            &[("switch", "switch --grpc 127.0.0.1:$PORT"), ("6000", "$PORT"), ("7000", "$PORT")],
        ),
    ),
    ("fatbtree shell", Ends(&[])),
    ("fatbtree shell --keys 100000 --trips", Ends(&[])),
    ("fatbtree shell --keys 100000 --cache 1000000 --trips", Ends(&[])),
    ("fatbtree shell --value-size 8 --fan-out 4", Ends(&[])),
    ("fatbtree shell --key-type bytes", Ends(&[])),
    ("fatbtree shell --structure hash", Ends(&[])),
    ("fatbtree shell --structure dolphin", Ends(&[])),
    ("fatbtree shell --structure dtx", Ends(&[])),
    ("printf 'put 1 one\\nget 1\\n' | fatbtree shell", Ends(&[])),
    ("cargo demo", Ends(&[("cargo demo", "fatbtree demo"), SMALL])),
    ("cargo demo --help", Ends(&[("cargo demo", "fatbtree demo")])),
    (
        "cargo demo --keys 2000000 --value-size 1000",
        Ends(&[("cargo demo", "fatbtree demo"), ("2000000", "5000 --lookups 500")]),
    ),
    ("fatbtree demo", Ends(&[SMALL])),
    ("fatbtree demo --keys 2000000 --value-size 1000", Ends(&[("2000000", "5000 --lookups 500")])),
    (
        "fatbtree demo --keys my-keys.txt --report out.html",
        Ends(&[("my-keys.txt", "my-keys.txt --lookups 500")]),
    ),
    ("fatbtree demo --keys 100000 --lookups 20000", Ends(&[("100000", "10000"), ("20000", "2000")])),
    ("fatbtree demo --workload a", Ends(&[SMALL])),
    ("fatbtree demo --workload my-workload.properties", Ends(&[SMALL])),
    ("fatbtree demo --k 6 --target tofino2", Ends(&[SMALL])),
    ("fatbtree demo --leaves buckets", Ends(&[SMALL])),
    ("fatbtree demo --plan zipf.json", Ends(&[SMALL])),
    ("fatbtree demo --distribution uniform --plan flat.json", Ends(&[SMALL])),
    ("fatbtree plan show zipf.json", Ends(&[])),
    ("fatbtree plan compare zipf.json flat.json", Ends(&[])),
    ("fatbtree plan check zipf.json --target tofino1", Ends(&[])),
    ("fatbtree plan land zipf.json 0x1234", Ends(&[])),
    ("fatbtree simulate --help", Ends(&[])),
    ("fatbtree simulate all", Ends(&[("all", "all --seeds 0..2")])),
    ("fatbtree simulate reads", Ends(&[("reads", "reads --seeds 0..20")])),
    ("fatbtree simulate reads --seed 4711", Ends(&[])),
    ("fatbtree simulate queries --seeds 5000..100000", Ends(&[("100000", "5005")])),
    ("fatbtree simulate writes --tonight 20000", Ends(&[("20000", "5")])),
    ("fatbtree simulate all --tonight 1000", Ends(&[("1000", "1")])),
    ("fatbtree completions bash > fatbtree.bash", Ends(&[])),
    ("fatbtree completions zsh > _fatbtree", Ends(&[])),
    ("fatbtree completions fish > fatbtree.fish", Ends(&[])),
    ("fatbtree man pages", Ends(&[])),
    ("fatbtree figures", Ends(&[FEW])),
    ("fatbtree figures --keys 30000 --window 500", Ends(&[("30000", "1000"), ("500", "100")])),
    ("fatbtree figures --json figures.json", Ends(&[FEW])),
    ("fatbtree figures --of fat-btree --keys 2000000", Ends(&[("2000000", "2000 --window 100")])),
    ("fatbtree figures --of smart --figure 3 --window 400", Ends(&[("400", "100")])),
    ("fatbtree figures --of dolphin --keys 200000", Ends(&[("200000", "2000 --window 100")])),
    (
        "fatbtree figures --of structures --figure keys --keys 100000",
        Ends(&[("100000", "2000 --window 100")]),
    ),
    ("fatbtree figures --of structures --keys 100000", Ends(&[("100000", "2000 --window 100")])),
    (
        "fatbtree figures --of dolphin --figure switches --keys 200000 --window 500",
        Ends(&[("200000", "2000"), ("500", "100")]),
    ),
    ("fatbtree figures --depth 32", Ends(&[FEW])),
];

/// Lines that cannot be run here, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("cargo test", "this is it"),
    ("cargo doc --open", "opens a browser"),
    (
        "fatbtree figures --of smart --window 1000",
        "hours; the simulator's tests run small sizes of its figures",
    ),
    ("cargo build --release -p fatbtree-cli", "the tests have built it"),
    (
        "cargo run --release -p fatbtree-cli -- demo --keys 100000 --lookups 20000",
        "a release build; the help of `demo` has the same line",
    ),
    (
        "cargo run --example embedded -- cluster.toml",
        "another program, which is built with the tests; `tests/pages.rs` compares the page with it",
    ),
    (
        "cargo run -p fatbtree --example bank -- cluster.toml",
        "another program, which is built with the tests; `tests/pages.rs` compares the page with it",
    ),
    (
        "cargo run -p fatbtree --example twelve_lines",
        "`scripts/new_user.sh` types it; `client/tests/it` runs it, too, and `tests/pages.rs` compares the pages with it",
    ),
    (
        "cargo run --release -p fatbtree-cli -- simulate writes --tonight 1000",
        "a release build; the help of `simulate` has the same line",
    ),
    (
        "apt-get install gcc libc6-dev libibverbs-dev ibverbs-providers",
        "needs root; the interop lab installs them",
    ),
    (
        "cargo build --release -p fatbtree-cli --features ibverbs",
        "needs these packages; the interop lab builds with the feature",
    ),
    (
        "fatbtree memserver left --cluster cluster.toml --nic ibverbs:mlx5_0",
        "needs an RDMA device; the interop lab runs it with soft RoCE",
    ),
    (
        "fatbtree bench --cluster cluster.toml --operations 100000 --nic ibverbs:mlx5_0",
        "needs an RDMA device; the interop lab runs it with soft RoCE",
    ),
    (
        "fatbtree switch --port 0=packet:eth1 --port 1=packet:eth2",
        "needs root and interfaces; `fabric/port/tests/ports.rs` has them in a namespace",
    ),
    ("apt-get install gcc libc6-dev pkg-config libdpdk-dev", "needs root; `.ci/run` installs them"),
    (
        "cargo build --release -p fatbtree-cli --features dpdk",
        "needs these packages; `.ci/run` builds with the feature",
    ),
    (
        "FATBTREE_EAL='-l 2,3' fatbtree switch --threads 2 --port 0=dpdk:0000:03:00.0 --port 1=dpdk:0000:03:00.1",
        "needs cards; `cli/tests/program/dpdk.rs` runs roles on virtual devices",
    ),
    (
        "FATBTREE_EAL='--no-huge -m 256' fatbtree switch --port 0=dpdk:net_tap0,iface=tap0 --port 1=dpdk:net_memif0,role=server,id=1",
        "needs root and DPDK; `cli/tests/program/dpdk.rs` runs roles on virtual devices",
    ),
    ("scripts/soak.sh", "takes 20 minutes; `.ci/run` has no room for it"),
    ("SOAK_POWER=1 scripts/soak.sh", "takes 20 minutes, and root; `.ci/run` has no room for it"),
    (
        "FATBTREE_CHAOS_ROUNDS=200 cargo test -p fatbtree-cli --test program chaos:: -- --nocapture",
        "takes ten minutes; the same test with fewer rounds is one of `cargo test`",
    ),
    ("fatbtree up", "has fixed ports; `cli/tests/program/up.rs` runs an example in a network of its own"),
    (
        "fatbtree up cluster.toml --example single",
        "has fixed ports; `cli/tests/program/up.rs` runs it in a network of its own",
    ),
    ("cargo run -p fatbtree-cli -- up cluster.toml --example single", "`scripts/new_user.sh` types it"),
    (
        "cargo run -p fatbtree --example every_operation -- cluster.toml",
        "another program, which is built with the tests; `client/tests/it` runs what it does",
    ),
    (
        "fatbtree put 4711 hello --cluster cluster.toml --nic ibverbs:mlx5_0",
        "needs an RDMA device; the interop lab runs it with soft RoCE",
    ),
    ("fatbtree up --page 127.0.0.1:8088", "has fixed ports; `scripts/live_page.py` looks at the page"),
    (
        "fatbtree up --example single",
        "has fixed ports; `cli/tests/program/up.rs` runs it in a network of its own",
    ),
    ("cargo install --locked --path cli --profile dist", "a release build, into the home folder"),
    ("apt-get install dpkg-dev python3", "needs root; `.ci/run` installs them"),
    ("packaging/deb.sh", "a release build; `.ci/run` packs the program of the tests"),
    (
        "cargo run -p fatbtree --example many_clients -- cluster.toml 1000",
        "another program, which is built with the tests; `client/tests/it` has fewer clients",
    ),
    (
        "cargo run -p fatbtree --example cache -- cluster.toml",
        "another program, which is built with the tests; `client/tests/it` tests its cache",
    ),
    ("cargo bench -p fatbtree --bench overhead", "a release build"),
    ("cargo bench -p fatbtree-workload --bench roce", "a release build"),
    ("PROFILE=release scripts/python.sh", "a release build; `.ci/run` has another profile"),
    (
        "pip install target/wheels/fatbtree-*.whl",
        "changes the machine; `scripts/python.sh` has a folder of its own",
    ),
    ("apt-get install ./target/debian/fatbtree_*.deb", "needs root, and the package"),
    (
        "systemctl enable --now fatbtree-switch@switch-0",
        "needs systemd; `tests/packaging.rs` runs the units' lines",
    ),
    (
        "systemctl enable --now fatbtree-memserver@left fatbtree-memserver@right",
        "needs systemd; `tests/packaging.rs` runs the units' lines",
    ),
    (
        "systemctl enable --now fatbtree-controller",
        "needs systemd; `tests/packaging.rs` runs the units' lines",
    ),
    ("journalctl -u fatbtree-controller -f", "needs systemd"),
    ("podman build -t fatbtree -f packaging/Containerfile .", "needs podman, and builds for minutes"),
    ("podman run --rm -it fatbtree up", "needs the image"),
    ("p4/compile_tofino.sh target/tofino", "needs p4c with its Tofino back end"),
    (
        "fatbtree controller --cluster testbed.toml --target tofino1 --compiled target/tofino",
        "needs what p4c has made for a Tofino",
    ),
    (
        "fatbtree controller --cluster testbed.toml --target tofino1 --compiled target/tofino --state plans",
        "needs what p4c has made for a Tofino",
    ),
    ("fatbtree control plan --cluster testbed.toml --save plan.json", "needs the testbed"),
    ("fatbtree control reload --cluster testbed.toml", "needs the testbed"),
    ("fatbtree control reload --cluster testbed.toml --plan plan.json", "needs the testbed"),
    ("fatbtree control status --cluster testbed.toml", "needs the testbed"),
];

// ---- what the guide says ----

/// The texts of its pages.
fn pages() -> Vec<String> {
    let book = std::fs::read_dir(root().join("docs/src")).expect("the book is there");
    let book = book.map(|entry| entry.expect("a readable folder").path());
    let book = book.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let others = ["README.md", "scripts/deploy-tofino.md"].map(PathBuf::from);
    book.chain(others).map(read).collect()
}

/// What is typed of a line: a comment begins after two spaces, or with a hash.
fn typed(line: &str) -> &str {
    let line = line.trim();
    let ends = [line.find("  "), line.find(" #")].into_iter().flatten();
    line[..ends.min().unwrap_or(line.len())].trim_end()
}

/// Of a page: lines of code blocks, and commands with arguments in the text.
fn of_page(page: &str, lines: &mut BTreeSet<String>) {
    let (mut block, mut text) = (None, String::new());
    for line in page.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(language), None) => block = Some(language),
            (None, Some("sh")) if !line.trim().is_empty() => drop(lines.insert(typed(line).to_owned())),
            (None, Some("console")) => {
                lines.extend(line.strip_prefix("$ ").map(|line| typed(line).to_owned()));
            }
            (None, Some(_)) => {}
            (None, None) => text.extend([line, " "]),
        }
    }
    let is_command = |span: &&str| {
        let program = ["fatbtree ", "cargo ", "curl "].iter().any(|program| span.starts_with(program));
        program && (span.contains(" -") || span.contains("://"))
    };
    lines.extend(text.split('`').skip(1).step_by(2).filter(is_command).map(str::to_owned));
}

/// Of a command's help and those of all its subcommands.
fn of_help(command: &[&str], lines: &mut BTreeSet<String>) {
    let output = run(&[command, &["--help"]].concat());
    assert!(output.status.success(), "{command:?} --help");
    let help = String::from_utf8(output.stdout).expect("text");
    let section = |title: &str| {
        let lines = help.lines().skip_while(move |line| *line != title).skip(1);
        // What is indented further goes on with the line before.
        let lines = lines.take_while(|line| !line.trim().is_empty());
        lines
            .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
            .collect::<Vec<_>>()
    };
    lines.extend(section("Examples:").into_iter().map(|line| typed(line).to_owned()));
    for line in section("Commands:") {
        let name = line.split_whitespace().next().expect("a name");
        if name != "help" {
            of_help(&[command, &[name]].concat(), lines);
        }
    }
}

#[test]
fn every_line_of_the_guide_has_its_place_here() {
    let mut lines = BTreeSet::new();
    for page in pages() {
        of_page(&page, &mut lines);
    }
    of_help(&[], &mut lines);
    let listed = CLUSTER
        .iter()
        .chain(HASH)
        .chain(DOLPHIN)
        .chain(DTX)
        .chain(ALONE)
        .map(|(line, _)| *line)
        .chain(ELSEWHERE.iter().map(|(line, _)| *line));
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    let unknown: Vec<_> = lines.difference(&listed).collect();
    assert!(unknown.is_empty(), "no test runs these lines of the guide: {unknown:#?}");
    let gone: Vec<_> = listed.difference(&lines).collect();
    assert!(gone.is_empty(), "these lines are not in the guide: {gone:#?}");
    assert_eq!(
        listed.len(),
        CLUSTER.len() + HASH.len() + DOLPHIN.len() + DTX.len() + ALONE.len() + ELSEWHERE.len(),
        "each once"
    );
    let alias = include_str!("../../../.cargo/config.toml");
    assert!(
        alias.contains("demo = \"run --profile demo --package fatbtree-cli -- demo\""),
        "`cargo demo` is run as such"
    );
}

// ---- running it ----

fn shell(folder: &Path, line: &str, words: Words) -> Command {
    let mut typed = line.to_owned();
    for (from, to) in words {
        assert!(typed.contains(from), "{from} is not in {line}");
        typed = typed.replacen(from, to, 1);
    }
    // A signal goes to the program, not to the shell.
    if !typed.contains('|') {
        typed = format!("exec {typed}");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_fatbtree")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-c", &typed]).current_dir(folder).stdin(Stdio::null());
    command.env("PATH", format!("{}:{path}", program.display())).env("PORT", ports::take(1).to_string());
    command
}

fn ends(folder: &Path, line: &str, words: Words) {
    let output = shell(folder, line, words).output().expect("there is a shell");
    assert!(
        output.status.success(),
        "{line}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

fn serves(folder: &Path, line: &str, until: &str, words: Words) -> Role {
    let role = Role::of(shell(folder, line, words));
    role.until(until);
    role
}

/// Core-0's metrics have the first of their ports.
fn fetches(folder: &Path, line: &str) {
    assert_eq!(line, "curl http://127.0.0.1:9800/metrics");
    let text = std::fs::read_to_string(folder.join("cluster.toml")).expect("the file");
    let cluster = Cluster::from_toml(&text).expect("a good file");
    let address = cluster.metrics("core-0").expect("the example has [metrics]");
    let answer = get(address, "/metrics");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("fatbtree_port_received_total"),
        "{answer}"
    );
}

/// A file of keys of bytes with values.
const NAMES: &str = "key,value\nuser:4711,Ada\nuser:12,Grace\nhttps://a.example/,page\n\"a,b\",c\n";

fn go_through(folder: &Path, lines: &[Line]) {
    let mut staying = Vec::new();
    for (line, how) in lines {
        match how {
            Ends(words) => ends(folder, line, words),
            Serves(until, words) => {
                let status = serves(folder, line, until, words).stop("INT");
                assert!(status.success(), "{line}: {status}");
            }
            Stays(until, words) => staying.push((line, serves(folder, line, until, words))),
            Fetches => fetches(folder, line),
        }
        if line.ends_with("example > cluster.toml") {
            let file = folder.join("cluster.toml");
            let text = std::fs::read_to_string(&file).expect("it was written");
            std::fs::write(file, on_own_ports(text)).expect("it is written");
        }
    }
    for (line, role) in staying {
        let status = role.stop("INT");
        assert!(status.success(), "{line}: {status}");
    }
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("a file is written");
}

#[test]
fn lines_about_a_cluster_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys: String = (1..=3000).map(|key| format!("{}\n", key * 7)).collect();
    write(folder.path(), "keys.txt", &keys);
    let ycsb = (0..9).map(|n| format!("INSERT usertable user{n} [ field0=x{n} field1=y ]\n"));
    write(folder.path(), "ycsb.out", &ycsb.collect::<String>());
    write(folder.path(), "names.csv", NAMES);
    write(folder.path(), "people.csv", "key,value\n1,Ada\n2,Grace\n3,\"Radia, too\"\n4,Barbara\n");
    go_through(folder.path(), CLUSTER);
}

#[test]
fn lines_about_other_structures_work() {
    for lines in [HASH, DOLPHIN, DTX] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let example = String::from_utf8(run(&["topology", "example"]).stdout).expect("text");
        write(folder.path(), "cluster.toml", &on_own_ports(example));
        write(folder.path(), "names.csv", NAMES);
        go_through(folder.path(), lines);
    }
}

#[test]
fn lines_that_need_no_cluster_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys: String = (1..=3000).map(|key| format!("{}\n", key * 7)).collect();
    write(folder.path(), "my-keys.txt", &keys);
    write(folder.path(), "my-workload.properties", "readproportion=0.9\nupdateproportion=0.1\n");
    let example = String::from_utf8(run(&["topology", "example"]).stdout).expect("text");
    write(folder.path(), "cluster.toml", &format!("[trust]\nfolder = \"certificates-too\"\n\n{example}"));
    go_through(folder.path(), ALONE);
}
