//! Clients of an index: what they do, what is asked for in the end, and what holds then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_dolphin::host::HybridIndex;
use fatbtree_dolphin::{Index, IndexError, NodeCache, Verified};
use fatbtree_remote_memory::{CommonError, Contention, Order, RemoteConfig};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::lab::{CHUNK, Registered, lead, serve, strays};
use super::{Aim, Outcome, Scenario, pick};
use crate::stage::{
    Act, Client, Clients, InCommon, Recorder, Restarts, SHARES, SOON, Scene, any_contention, client, config,
    keep, nothing_wrong,
};
use crate::world::trial::{Alive, Deaths, Disturbances, Ended, Trial};
use crate::world::{CachedSwitches, FinalOperation, Machine, Random, SimDevice, World, random};

/// Time with faults.
const FAULTS: Duration = Duration::from_millis(6);
/// Lease of a session: a run sees many end.
const LEASE: Duration = Duration::from_micros(1_500);
/// Patience of the last operations: far more than they take when nothing is in the way.
const PATIENCE: Duration = Duration::from_millis(30);
const TASKS: usize = 3;

impl InCommon for IndexError {
    fn in_common(&self) -> Option<&CommonError> {
        match self {
            Self::Common(error) => Some(error),
            _ => None,
        }
    }
}

impl Scenario {
    /// What a task does next. Where keys come and go, they do so in turns.
    fn draw(&self, ebbs: bool, random: &mut Random) -> (u64, Act) {
        use Act::{Delete, Get, Insert, Scan, Swap, Update, Upsert};
        let act = match self.aim {
            Aim::Insertions => *pick(random, &[Get, Insert, Insert, Insert, Insert, Delete, Delete]),
            Aim::Splits | Aim::Full => {
                *pick(random, &[Get, Get, Insert, Insert, Insert, Upsert, Update, Scan])
            }
            Aim::Merges | Aim::Bursts | Aim::Moves if ebbs => {
                *pick(random, &[Get, Delete, Delete, Delete, Delete, Scan])
            }
            Aim::Merges | Aim::Bursts | Aim::Moves => {
                *pick(random, &[Get, Insert, Insert, Insert, Update, Delete])
            }
            Aim::Updates | Aim::Records | Aim::Lines => {
                *pick(random, &[Get, Get, Insert, Update, Update, Upsert, Delete, Delete])
            }
            Aim::Swaps => *pick(random, &[Get, Insert, Update, Delete, Swap, Swap, Swap, Swap]),
            Aim::All => *pick(random, &[Get, Insert, Update, Upsert, Delete, Scan]),
        };
        (*pick(random, &self.keys), act)
    }

    /// Bytes of the value of a word.
    fn length(&self, word: u64) -> usize {
        match self.aim {
            _ if self.longest == 8 => 8,
            Aim::Lines => self.longest,
            // The longest one, and the last that fits a size of records' places, and the next.
            _ if word.is_multiple_of(4) => *[self.longest, self.longest - 1, 40, 41, 104, 105]
                .get((word / 4) as usize % 6)
                .filter(|length| **length <= self.longest)
                .unwrap_or(&self.longest),
            _ => 8 + (word * 7_919) as usize % (self.longest - 8),
        }
    }
}

/// What all tasks of a seed share.
struct Setting {
    recorder: Recorder,
    scenario: Scenario,
}

/// A client in one life.
#[derive(Clone)]
struct Living {
    machine: Machine,
    memory: Client,
    setting: Rc<Setting>,
    cache: Rc<NodeCache>,
    /// The index, of which a client has one.
    index: Rc<RefCell<Option<Rc<Index<SimDevice>>>>>,
}

impl Living {
    async fn open(&self) -> Result<Rc<Index<SimDevice>>, IndexError> {
        let Scenario { shape, led, .. } = &self.setting.scenario;
        let opened = Index::open(Rc::clone(&self.memory), shape.home(), Rc::clone(&self.cache)).await?;
        opened.set_led(*led);
        Ok(Rc::clone(self.index.borrow_mut().get_or_insert_with(|| Rc::new(opened))))
    }

    /// Works until the machine dies. All tasks of a client use one index.
    async fn work(self, index: Rc<Index<SimDevice>>, mut random: Random) {
        let Setting { recorder, scenario } = &*self.setting;
        let mut ebbs = random.random_bool(0.5);
        for step in 1_u32.. {
            if step % 60 == 0 {
                ebbs = !ebbs;
            }
            let (key, act) = scenario.draw(ebbs, &mut random);
            drop(match act {
                Act::Scan => {
                    let order = scenario.order;
                    let range = match order {
                        Order::Backward => (*scenario.keys.first().unwrap_or(&key), key),
                        Order::Forward => (key, *scenario.keys.last().unwrap_or(&key)),
                    };
                    let most = random.random_range(1..40);
                    recorder.scan(&self.machine, &*index, range, most, order).await.map(drop)
                }
                act => recorder.operate(&self.machine, &*index, key, act).await,
            });
        }
    }

    /// Asks for some of the keys.
    async fn end(self, number: usize) -> Result<(), String> {
        let Setting { recorder, scenario } = &*self.setting;
        let index = self.open().await.map_err(|error| error.to_string())?;
        // Without memory keys can be taken away.
        let last = if scenario.aim == Aim::Full { Act::Delete } else { Act::Upsert };
        for &key in scenario.keys.iter().skip(number).step_by(SHARES) {
            for act in [Act::Get, last, Act::Get] {
                recorder.must(&self.machine, &*index, key, act).await?;
            }
        }
        Ok(())
    }

    /// Walks over the index: it is whole, has each key once, and a scan finds as many.
    async fn verify(self) -> Result<Verified, String> {
        let index = self.open().await.map_err(|error| error.to_string())?;
        let verified = index.verify().await.map_err(|fault| fault.to_string())?;
        let (all, order) = ((0, u64::MAX), self.setting.scenario.order);
        let found = self.setting.recorder.scan(&self.machine, &*index, all, usize::MAX, order).await;
        match found.map_err(|error| error.to_string())? as u64 {
            found if found == verified.keys => Ok(verified),
            found => Err(format!("{} keys are there, a scan finds {found}", verified.keys)),
        }
    }
}

/// The clients of an index.
struct Users {
    setting: Rc<Setting>,
    switches: Option<CachedSwitches>,
    /// Mishaps for which dead servers stay away.
    away: Cell<u32>,
    /// The last client, and what it has found.
    last: RefCell<Option<Living>>,
    verified: RefCell<Option<Verified>>,
}

impl Users {
    fn live(
        &self,
        scene: &Scene<Self>,
        machine: &Machine,
        config: RemoteConfig,
        draw: &mut Random,
        switches: Option<CachedSwitches>,
    ) -> Living {
        let memory = client(machine, &scene.servers, config, draw);
        keep(machine, Rc::new(Registered { memory: Rc::clone(&memory), switches }), &scene.servers, drop);
        let cache = Rc::new(NodeCache::new(self.setting.scenario.cache));
        let (setting, index) = (Rc::clone(&self.setting), Rc::default());
        Living { machine: machine.clone(), memory, setting, cache, index }
    }
}

impl Clients for Users {
    type Part = HybridIndex;

    fn work(&self, scene: &Scene<Self>, machine: &Machine, draw: &mut Random) {
        let config = config(any_contention(draw), self.setting.scenario.patience, draw);
        let living = self.live(scene, machine, config, draw, self.switches.clone());
        let seeds: [u64; TASKS] = std::array::from_fn(|_| draw.random_range(0..=u64::MAX));
        let of = machine.clone();
        drop(machine.spawn(async move {
            let Ok(index) = living.open().await else { return };
            for seed in seeds {
                drop(of.spawn(living.clone().work(Rc::clone(&index), random(seed, 2))));
            }
        }));
    }

    fn end(&self, scene: &Scene<Self>, draw: &mut Random) -> Vec<FinalOperation<String>> {
        let config = config(Contention::SMART, PATIENCE, draw);
        // Wrong switches are a fault, too: where they lead to memory that is none, they break a connection.
        let living = self.live(scene, &scene.last, config, draw, None);
        self.last.replace(Some(living.clone()));
        let share = |number| (format!("keys {number}"), scene.last.spawn(living.clone().end(number)));
        (0..SHARES).map(share).collect()
    }

    fn died(&self, draw: &mut Random) {
        if self.setting.scenario.away > 0 {
            self.away.set(draw.random_range(0..=self.setting.scenario.away));
        }
    }

    fn are_back(&self, _: &mut Random) -> bool {
        let away = self.away.get();
        self.away.set(away.saturating_sub(1));
        away == 0
    }

    fn nothing_wrong(&self) -> Result<(), String> {
        self.setting.recorder.nothing_wrong()
    }
}

/// Nothing answers that is no part of the index.
fn no_strays(ended: &Ended<'_, Scene<Users>>) -> Result<(), String> {
    let strays = strays(&ended.stage.servers, &ended.stage.clients.setting.scenario.shape);
    match strays.first() {
        None => Ok(()),
        Some(leaf) => Err(format!("the leaf at {leaf} answers, and nothing leads to it")),
    }
}

/// The index is whole. The history explains which keys it has: what dead clients have posted may come until their sessions have lapsed, and
/// take away what was put last.
fn verified(ended: &Ended<'_, Scene<Users>>) -> Result<(), String> {
    let Users { last, verified, .. } = &ended.stage.clients;
    ended.world.run_for(LEASE * 2);
    let living = last.take().ok_or("the last client was not begun")?;
    verified.replace(Some(ended.stage.walk(ended.world, living.verify())?));
    Ok(())
}

/// The servers sweep when no client is left: no record is free that a key needs. What is written then lies in records that were lost.
fn swept(ended: &Ended<'_, Scene<Users>>) -> Result<(), String> {
    let (scene, users) = (ended.stage, &ended.stage.clients);
    let Setting { recorder, scenario } = &*users.setting;
    if scenario.shape.fixed() {
        return Ok(());
    }
    scene.sweep(ended.world, &mut random(scenario.seed, 86))?;
    verified(ended)?;
    nothing_wrong(ended)?;
    recorder.linearizable()
}

/// Runs a scenario.
pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let &Scenario { seed, shape, chunks, led, unlinked, .. } = scenario;
    let draw = &mut random(seed, 81);
    let world = World::new(seed, scenario.world.clone());
    let servers = serve(&world, shape, chunks * CHUNK, LEASE);
    let of = scenario.clone();
    let recorder = Recorder::new(scenario.aim == Aim::Full, move |word| of.length(word));
    let users = Users {
        setting: Rc::new(Setting { recorder, scenario: scenario.clone() }),
        switches: led.map(|_| lead(&world, &servers, shape, unlinked, random(seed, 84))),
        away: Cell::default(),
        last: RefCell::default(),
        verified: RefCell::default(),
    };
    let scene = Scene::new(&world, servers, users, |options| options, draw, random(seed, 82));
    scene.begin(draw);
    let trial = Trial {
        faults: vec![
            Box::new(Deaths { percent: 40 }),
            Box::new(Restarts { percent: 8 }),
            Box::new(Disturbances),
        ],
        calm: Duration::from_micros(800),
        lasts: FAULTS,
        soon: SOON,
        properties: vec![
            Box::new(Alive),
            Box::new(no_strays),
            Box::new(verified),
            Box::new(nothing_wrong),
            Box::new(|ended: &Ended<'_, Scene<Users>>| ended.stage.clients.setting.recorder.linearizable()),
            Box::new(swept),
        ],
    };
    trial.run(&world, &scene)?;
    let counts = scene.clients.setting.recorder.counts();
    let Verified { leaves, nodes, unfinished, .. } =
        scene.clients.verified.take().ok_or("nothing was verified")?;
    Ok(Outcome {
        answered: counts.answered,
        unknown: counts.unknown,
        refused: counts.refused + counts.short,
        scans: counts.scans,
        swaps: counts.swaps,
        deaths: scene.deaths.get(),
        restarts: scene.restarts.get(),
        lapsed: scene.count("sessions_lapsed"),
        leaves,
        nodes,
        unfinished,
        chunks: scene.count("chunks_published"),
    })
}
