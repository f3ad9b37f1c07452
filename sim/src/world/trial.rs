//! A trial: a structure's clients and servers under faults; then everything is healed, and then properties are checked.
//!
//! ```text
//!   Stage: machines, clients at work ──► mishaps, one after each pause ──► healed ──► last operations ──► properties
//!                                        Fault, Fault, …                              must succeed        Property, …
//! ```
//!
//! A structure brings its [`Stage`]. Faults and properties are lists: [`Deaths`] and [`Disturbances`] are for all structures,
//! [`Alive`] is a property of all. So a second structure writes what is its own, and no loop.

use std::rc::Rc;

use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::liveness::{FinalOperation, NotLive};
use super::machine::Machine;
use super::run::World;
use super::{Random, random};

/// Clients and servers of a structure, at work.
pub trait Stage: 'static {
    /// The clients' machines.
    fn clients(&self) -> &[Machine];

    /// The machine of one of the servers.
    fn any_server(&self, random: &mut Random) -> &Machine;

    /// Precedes each mishap: what is dead begins a new life. Returns whether this was a mishap by itself, so that no fault follows.
    fn begin_mishap(self: &Rc<Self>, random: &mut Random) -> bool;

    /// Freezes a server: its card, or its processor.
    fn freeze_server(&self, random: &mut Random) {
        self.any_server(random).freeze_card();
    }

    /// A disturbance of what only this stage has.
    fn disturb(&self, _: &mut Random) {}

    /// Ends the stage's own faults, begins new lives, and starts the operations that must succeed.
    fn begin_last(self: &Rc<Self>) -> Vec<FinalOperation<String>>;
}

/// A kind of mishap.
pub trait Fault<S: ?Sized> {
    /// Probability in percent that a mishap is of this kind, if it is of none before it in the list.
    fn percent(&self) -> u32;

    /// Lets it happen. Where it is about a client, it is about this one.
    fn strike(&self, stage: &Rc<S>, client: &Machine, random: &mut Random);
}

/// A condition that holds after the faults.
pub trait Property<S: ?Sized> {
    /// Checks it; the error says what does not hold.
    ///
    /// # Errors
    /// When it does not hold.
    fn check(&self, ended: &Ended<'_, S>) -> Result<(), String>;
}

impl<S: ?Sized, F: Fn(&Ended<'_, S>) -> Result<(), String>> Property<S> for F {
    fn check(&self, ended: &Ended<'_, S>) -> Result<(), String> {
        self(ended)
    }
}

/// A trial after its last operations.
pub struct Ended<'t, S: ?Sized> {
    /// The world.
    pub world: &'t World,
    /// The stage.
    pub stage: &'t Rc<S>,
    alive: Result<Duration, NotLive>,
}

/// All last operations succeed in time.
#[derive(Clone, Copy, Debug)]
pub struct Alive;

impl<S: ?Sized> Property<S> for Alive {
    fn check(&self, ended: &Ended<'_, S>) -> Result<(), String> {
        ended.alive.as_ref().map(drop).map_err(ToString::to_string)
    }
}

/// Deaths of clients: at any await, or after so many WRITEs.
#[derive(Clone, Copy, Debug)]
pub struct Deaths {
    /// Percentage of mishaps.
    pub percent: u32,
}

impl<S: Stage> Fault<S> for Deaths {
    fn percent(&self) -> u32 {
        self.percent
    }

    fn strike(&self, _: &Rc<S>, client: &Machine, random: &mut Random) {
        if random.random_bool(0.5) {
            client.kill_after_polls(random.random_range(0..100));
        } else {
            client.mute_after_writes(random.random_range(1..12));
        }
    }
}

/// Links that are cut, and machines that freeze; they come back.
#[derive(Clone, Copy, Debug)]
pub struct Disturbances;

impl<S: Stage> Fault<S> for Disturbances {
    fn percent(&self) -> u32 {
        100
    }

    fn strike(&self, stage: &Rc<S>, client: &Machine, random: &mut Random) {
        match random.random_range(0..9) {
            0..3 => client.set_link_down(random.random_bool(0.5)),
            3 => client.freeze(),
            4 | 5 => client.thaw(),
            6 => stage.freeze_server(random),
            7 => {
                let server = stage.any_server(random);
                server.thaw_card();
                server.thaw();
            }
            _ => stage.disturb(random),
        }
    }
}

/// Course of a trial.
pub struct Trial<S> {
    /// Kinds of mishaps.
    pub faults: Vec<Box<dyn Fault<S>>>,
    /// Longest pause between two mishaps.
    pub calm: Duration,
    /// Time with mishaps.
    pub lasts: Duration,
    /// Time for the last operations.
    pub soon: Duration,
    /// Properties, in the order in which they are checked; [`Alive`] has a place among them.
    pub properties: Vec<Box<dyn Property<S>>>,
}

/// Purpose of the [random numbers](random) that decide mishaps.
const MISHAPS: u64 = 95;

impl<S: Stage> Trial<S> {
    /// Runs the trial on a stage whose clients are at work.
    ///
    /// # Errors
    /// The first property that does not hold.
    pub fn run(self, world: &World, stage: &Rc<S>) -> Result<(), String> {
        let Self { faults, calm, lasts, soon, properties } = self;
        let operator = world.operator().clone();
        let fate = world.operator().spawn(play(operator, Rc::clone(stage), faults, calm, world.seed()));
        world.run_for(lasts);
        let alive = world.final_phase(soon, || {
            fate.cancel();
            stage.begin_last()
        });
        let ended = Ended { world, stage, alive };
        properties.iter().try_for_each(|property| property.check(&ended))
    }
}

/// Lets mishaps happen until it is cancelled.
async fn play<S: Stage>(
    operator: Machine,
    stage: Rc<S>,
    faults: Vec<Box<dyn Fault<S>>>,
    calm: Duration,
    seed: u64,
) {
    let random = &mut random(seed, MISHAPS);
    loop {
        operator.sleep(Duration::from_nanos(random.random_range(1..=calm.as_nanos()))).await;
        if stage.begin_mishap(random) {
            continue;
        }
        let client = &stage.clients()[random.random_range(0..stage.clients().len())];
        let mut is_of = |percent: u32| match percent {
            0 => false,
            100.. => true,
            percent => random.random_range(0..100) < percent,
        };
        if let Some(fault) = faults.iter().find(|fault| is_of(fault.percent())) {
            fault.strike(&stage, client, random);
        }
    }
}
