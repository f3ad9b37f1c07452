// A read-through cache that all processes of a cluster share, with a bound.
//
// It has a fixed number of slots, one key of the cluster each, so it cannot outgrow its bound. A name's hash chooses its slot; the slot's value
// holds the whole name, so that two names of one slot evict each other and are never confused.
//
//     slot's value   0–8 end of life, ms since 1970   8–10 length of the name   name   cached bytes

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fatbtree::{Bytes, Client, Error};

/// A cache in the slots `first` to `first + slots - 1` of a cluster.
pub(crate) struct Cache {
    pub(crate) db: Client,
    pub(crate) first: u64,
    pub(crate) slots: u64,
    /// Time after which a cached value is loaded again.
    pub(crate) life: Duration,
}

impl Cache {
    /// The value of a name: from the cache, or else from `load`, which may be slow. Says whether it was cached.
    ///
    /// A value that was loaded while another process [forgot](Self::forget) the name is returned, but not cached: it may be the old one.
    pub(crate) async fn get<E: From<Error>>(
        &self,
        name: &str,
        load: impl AsyncFnOnce(&str) -> Result<Vec<u8>, E>,
    ) -> Result<(Bytes, bool), E> {
        let slot = self.slot(name);
        let seen = self.db.get(slot).await?;
        if let Some(value) = seen.as_ref().and_then(|seen| cached(seen, name)) {
            return Ok((value, true));
        }
        let value = load(name).await?;
        let filled = entry(millis() + self.life.as_millis() as u64, name, &value);
        // Only if the slot is as it was before the load. Whether this succeeds matters to the next reader, not to this one.
        match &seen {
            None => self.db.insert(slot, filled).await?,
            Some(seen) => self.db.compare_and_swap(slot, seen, filled).await?,
        };
        Ok((value.into(), false))
    }

    /// Forgets a name, for after its value was changed at its source.
    ///
    /// What it writes is new each time, so that a load that began before cannot fill the slot afterwards.
    pub(crate) async fn forget(&self, name: &str) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.db.put(self.slot(name), entry(0, "", &now.as_nanos().to_le_bytes())).await
    }

    fn slot(&self, name: &str) -> u64 {
        // FNV-1a: the same in every process and every version.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self.first + hash % self.slots
    }
}

fn millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Names longer than 65,535 bytes are cut: they are never found, and only cost a load.
fn entry(end: u64, name: &str, value: &[u8]) -> Vec<u8> {
    let length = name.len().min(usize::from(u16::MAX));
    [&end.to_le_bytes(), &(length as u16).to_le_bytes()[..], &name.as_bytes()[..length], value].concat()
}

/// The cached bytes of this name, if the slot has them and they are not too old.
fn cached(seen: &Bytes, name: &str) -> Option<Bytes> {
    let end = u64::from_le_bytes(seen.get(..8)?.try_into().ok()?);
    let length = usize::from(u16::from_le_bytes(seen.get(8..10)?.try_into().ok()?));
    let is_this = seen.get(10..10 + length)? == name.as_bytes();
    (is_this && end > millis()).then(|| seen.slice(10 + length..))
}
