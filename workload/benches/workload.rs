//! Draws per second of each distribution, and of whole operations: `cargo bench -p fatbtree-workload --bench
//! workload`.
//!
//! Plain loops, the best of many short ones: on a machine that does other things too, a loop of a millisecond
//! is often undisturbed where one of a second never is.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a bench: it prints, and stops at the first surprise

use std::hint::black_box;
use std::time::Instant;

use fatbtree_workload::Operations as _;
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, Zipfian, builtin};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const DRAWS: u32 = 20_000;
const LOOPS: u32 = 500;

fn main() {
    for theta in [0.99, 1.2] {
        let zipf = Zipfian::new(2_000_000, theta).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        measure(&format!("draw zipfian {theta}"), || zipf.draw(&mut rng));
    }
    for distribution in ["uniform", "zipfian", "zipfian-ranked", "latest", "hotspot", "exponential"] {
        let mut properties = builtin("c").unwrap();
        properties.set("recordcount", "2000000");
        properties.set("requestdistribution", distribution);
        let spec = WorkloadSpec::from_properties(&properties).unwrap();
        let mut workload = Workload::new(&spec, KeyMap::Hashed, 1).unwrap();
        measure(&format!("operation {distribution}"), || workload.next_operation().unwrap().key);
    }
}

fn measure(name: &str, mut draw: impl FnMut() -> u64) {
    let best = (0..LOOPS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..DRAWS {
                black_box(draw());
            }
            start.elapsed()
        })
        .min()
        .expect("there is more than one loop");
    let ns = best.as_nanos() as f64 / f64::from(DRAWS);
    println!("{name:30} {ns:6.1} ns  {:6.1} M/s", 1000.0 / ns);
}
