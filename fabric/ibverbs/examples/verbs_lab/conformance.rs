//! The side that posts: runs the suite, and then the checks of `limits.rs`.

use std::time::{Duration, Instant};

use fatbtree_ibverbs::{Config, RdmaDevice};
use fatbtree_verbs::Device as _;
use fatbtree_verbs::conformance::{self, Bench, Responder};

use crate::control::RemoteResponder;
use crate::limits;

/// How long anything may take: an emulated machine on a busy host stands still for seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at the completion queue: the emulated machine has other things to do.
const PAUSE: Duration = Duration::from_micros(100);

/// A device here, and a responder on another machine.
pub(crate) struct TwoMachines {
    pub(crate) verbs: RdmaDevice,
    pub(crate) responder: RemoteResponder,
    waits_since: Instant,
}

impl Bench for TwoMachines {
    type Verbs = RdmaDevice;

    fn verbs(&mut self) -> &mut RdmaDevice {
        &mut self.verbs
    }

    fn responder(&mut self) -> &mut dyn Responder {
        &mut self.responder
    }

    fn advance(&mut self, turns: u64) -> bool {
        if turns == 0 {
            self.waits_since = Instant::now();
        }
        std::thread::sleep(PAUSE);
        self.verbs.under_way() > 0 && self.waits_since.elapsed() < PATIENCE
    }
}

impl TwoMachines {
    pub(crate) fn new(device: &str, address: &str, config: &Config) -> Result<Self, String> {
        let verbs = RdmaDevice::open(device, config).map_err(|error| error.to_string())?;
        let responder = RemoteResponder::connect(address)?;
        Ok(Self { verbs, responder, waits_since: Instant::now() })
    }
}

/// Prints a line per check, and counts.
struct Lines {
    began: Instant,
    checks: usize,
    failed: usize,
}

impl Lines {
    fn line(&mut self, name: &str, why: Option<&str>) {
        self.checks += 1;
        match why {
            None => println!("ok    {name} ({:.2} s)", self.began.elapsed().as_secs_f32()),
            Some(why) => {
                self.failed += 1;
                println!("FAIL  {name}: {}", why.replace('\n', " "));
            }
        }
        self.began = Instant::now();
    }
}

pub(crate) fn run(device: &str, address: &str) -> Result<(), String> {
    let config = crate::config();
    let mut bench = TwoMachines::new(device, address, &config)?;
    println!("here:  {:?}", bench.verbs.capabilities());
    println!("there: {:?}", bench.responder.capabilities()?);
    drop(bench);

    let mut lines = Lines { began: Instant::now(), checks: 0, failed: 0 };
    let make = || {
        TwoMachines::new(device, address, &config).unwrap_or_else(|error| {
            println!("verbs_lab: {error}");
            std::process::exit(1)
        })
    };
    conformance::run_observed(make, |case, why| lines.line(case, why));
    for (name, check) in limits::CHECKS {
        lines.line(name, check(device, address).err().as_deref());
    }
    let Lines { checks, failed, .. } = lines;
    println!("{checks} checks, {failed} failed");
    if failed > 0 { Err(format!("{failed} checks failed")) } else { Ok(()) }
}
