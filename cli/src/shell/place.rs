//! Where a structure is that the shell works on: in a running cluster, or in this process.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use fatbtree_blink::Keys;
use fatbtree_memserver::{Part, PartOptions, make};
use fatbtree_processes::{ClientOptions, Reached, StructureProcess};
use fatbtree_registry::{MAX_SERVERS, SpreadKind};
use fatbtree_remote_memory::{Spread, Structure};
use fatbtree_topology::Cluster;
use fatbtree_verbs::plain::PlainDevice;

use crate::in_process::InProcess;
use crate::nic::Nic;
use crate::structure::{client_of, open_client};

/// Time limit for memory servers to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of each server of a structure in this process.
const SPARE: u64 = 1 << 30;

/// Where a structure is.
pub(super) trait Place {
    /// The structure.
    type Structure: Structure + 'static;

    /// Puts of a `load` that are under way at once: one where nothing takes time.
    const PUTS_AT_ONCE: usize = 1;

    /// Kind of the structure's keys.
    fn keys(&self) -> Keys {
        Keys::Numbers
    }

    /// The structure, or a handle to it.
    fn structure(&self) -> Rc<Self::Structure>;

    /// Runs an operation to its end.
    fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T>;

    /// READs that the client has posted so far.
    fn reads(&self) -> u64;

    /// Walks over the whole structure and checks it. Returns what it finds, in words.
    fn verify(&mut self) -> Result<String>;

    /// The value that `load` puts for a key.
    fn loaded_value(&self) -> Box<dyn Fn(u64) -> Vec<u8>> {
        Box::new(|key| format!("v{key}").into_bytes())
    }

    /// Further lines for `stats`.
    fn statistics(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The structure is opened again where a server has begun anew.
impl<C: Reached> Place for StructureProcess<C> {
    type Structure = C;

    const PUTS_AT_ONCE: usize = 32;

    fn keys(&self) -> Keys {
        match self.infos().any(|info| C::has_byte_keys(&info.structure)) {
            true => Keys::Bytes,
            false => Keys::Numbers,
        }
    }

    fn structure(&self) -> Rc<C> {
        Rc::new(self.client().clone())
    }

    fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        Ok(self.run(work)?)
    }

    fn reads(&self) -> u64 {
        self.client().remote().counters().reads
    }

    fn verify(&mut self) -> Result<String> {
        let client = self.client().clone();
        let verified = self.run(client.verify())?.map_err(|error| anyhow!(error));
        verified.context(
            "the walk has met a fault, or a change of another client on its way: repeat it when nothing changes the structure",
        )
    }
}

/// Connects as a client of the cluster file, by default the first one.
pub(super) fn connect<C: Reached>(
    (file, cluster): (&Path, &Cluster),
    client: Option<&str>,
    nic: &Nic,
) -> Result<StructureProcess<C>> {
    let described = client_of(cluster, client)?;
    let trust = crate::topology::trust(cluster, file, &described.name)?;
    let options = |host, nic| ClientOptions {
        lanes: 1,
        controllers: cluster.controllers().to_vec(),
        trust: trust.clone(),
        patience: PATIENCE,
        ..ClientOptions::new(host, nic, cluster.servers())
    };
    let open = |host, nic| StructureProcess::open_without_absent(&options(host, nic));
    open_client(nic, cluster, described, PATIENCE, open)
}

impl<S: Spread<Verbs = PlainDevice>, P: Part> Place for InProcess<S, P> {
    type Structure = S;

    fn structure(&self) -> Rc<S> {
        self.structure()
    }

    fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        Ok(self.drive(work))
    }

    fn reads(&self) -> u64 {
        self.structure().memory().counters().reads
    }

    fn verify(&mut self) -> Result<String> {
        let structure = self.structure();
        Ok(self.drive(structure.verify())?.to_string())
    }
}

/// A structure in this process on `count` memory servers, empty.
pub(super) fn own<K: SpreadKind>(count: u16) -> Result<InProcess<K::Structure<PlainDevice>, K::Part>> {
    let numbers = 0..count.min(MAX_SERVERS);
    let shape = K::shape(numbers.clone().fold(0, |all, number| all | 1 << number));
    let part =
        |number| make::<K::Part>(&PartOptions { spare_bytes: SPARE, ..PartOptions::new(number, shape) });
    let parts = numbers.map(part).collect::<Result<Vec<_>, _>>()?;
    InProcess::serve(parts, K::Structure::<PlainDevice>::REMEMBERED)
}

#[cfg(test)]
mod tests {
    use fatbtree_registry::{Kind as _, WORDS, with_spread};
    use fatbtree_remote_memory::{Change, KeyRange, Order};

    use super::*;

    /// What a structure says to lack fails and changes nothing, and all else works.
    fn check<K: SpreadKind>() {
        let mut own = own::<K>(1).expect("there is memory");
        let structure = own.structure();
        let lacks = |operation| K::Structure::<PlainDevice>::LACKS.contains(&operation);
        assert!(own.drive(structure.change(7, Change::Upsert(b"one"))).result.expect("there is room"));
        let swap = Change::CompareAndSwap { expected: b"one", value: b"two" };
        let swapped = own.drive(structure.change(7, swap)).result;
        assert_eq!(swapped.is_err(), lacks("compare_and_swap"), "{}", K::NAME);
        for order in [Order::Forward, Order::Backward] {
            let scanned = own.drive(structure.scan(KeyRange::ALL, order, 10)).result;
            let found = (!lacks(order.operation())).then_some(1);
            assert_eq!(scanned.map(|pairs| pairs.len()).ok(), found, "{}", K::NAME);
        }
        let found = own.drive(structure.get(7)).result.expect("it is there").expect("it is there");
        assert_eq!(found.as_ref(), if lacks("compare_and_swap") { b"one" } else { b"two" });
        assert!(own.drive(structure.change(7, Change::Delete)).result.expect("it is there"));
    }

    #[test]
    fn operations_that_a_structure_lacks_are_refused() {
        for word in WORDS {
            with_spread!(word, K => check::<K>());
        }
    }
}
