//! What a tree's server does of a load: a stream of keys and values becomes a tree.

use std::time::Duration;

use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{KeyRange, Keys, LeafKind, MAX_VALUE, TreeConfig};
use fatbtree_memserver::grpc::{Built, Incoming};
use fatbtree_memserver::{Loaded, Origin};
use prost::Message as _;
use tonic::Status;

use super::convert::layout;
use super::proto;
use crate::TreeServerInfo;
use crate::kept::{BuildError, TreeStorage, build_in};
use crate::load::{BytePairs, Layout, Load, LoadCounts, LoadOptions, LoadedTree};
use crate::tenant::Blink;
use crate::values::ValueSource;

/// Bytes of a key with its entry in a leaf and its record, beside its value, at least.
const KEY_BYTES: u64 = 8 + 12 + 8;

/// Options of loading over gRPC.
#[derive(Debug)]
pub struct Loading {
    /// Storage of trees.
    pub storage: TreeStorage,
    /// Bytes of the largest region; a load that needs more is refused. While it is loaded, the server has the former region, the keys and
    /// values that have come, and the new region.
    pub region_bytes: u64,
    /// Memory for what clients will write, in bytes: part of the region.
    pub spare_bytes: u64,
    /// Time to wait for the next message of a load.
    pub stall: Duration,
}

impl Loading {
    /// In memory, regions of up to 64 GiB of which 1 GiB is spare.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            storage: TreeStorage::Memory,
            region_bytes: 64 << 30,
            spare_bytes: 1 << 30,
            stall: Duration::from_secs(20),
        }
    }
}

/// Bounds of loads.
pub(super) struct Bounds {
    pub(super) region_bytes: u64,
    pub(super) spare_bytes: u64,
}

/// Pairs on their way to a server.
pub(super) struct TreeIncoming {
    begin: proto::LoadBegin,
    options: LoadOptions,
    came: Came,
}

/// Pairs that have come.
enum Came {
    Numbers(Pairs),
    Bytes(BytePairs),
}

impl Came {
    /// Their number, and the bytes of their values, or of all where keys are bytes.
    fn count(&self) -> (u64, u64) {
        let (pairs, bytes) = match self {
            Self::Numbers(pairs) => (pairs.keys.len(), pairs.values.len()),
            Self::Bytes(pairs) => (pairs.len(), pairs.content_bytes()),
        };
        (pairs as u64, bytes as u64)
    }
}

impl Incoming for TreeIncoming {
    type Tenant = Blink;
    type Counts = LoadCounts;
    type Options = Bounds;

    /// Checks what is announced, before anything of it is kept.
    fn begin(
        bounds: &Bounds,
        announced: &[u8],
        info: &TreeServerInfo,
        _: &mut TreeStorage,
    ) -> Result<Self, Status> {
        let begin = proto::LoadBegin::decode(announced).map_err(|error| {
            Status::invalid_argument(format!("the announcement is none of a tree: {error}"))
        })?;
        let proto::LoadBegin { low_key: low, high_key: high, keys, value_bytes, empty, .. } = begin;
        if (keys == 0) != empty {
            return Err(Status::invalid_argument(format!(
                "no keys, or an empty tree with {keys}: expected at least one, or an empty tree that is asked for"
            )));
        }
        let &Bounds { region_bytes, spare_bytes } = bounds;
        let least = keys.saturating_mul(KEY_BYTES).saturating_add(value_bytes).saturating_add(spare_bytes);
        if least > region_bytes {
            return Err(Status::resource_exhausted(format!(
                "{keys} keys with values of {value_bytes} bytes together need a region of at least {least} bytes, of which {spare_bytes} are \
                 spare; this server takes up to {region_bytes}: start it with a larger --region-bytes, or split the keys over more servers"
            )));
        }
        let config = shape(&begin, &info.config)?;
        let generation = info.generation.wrapping_add(1);
        let range = KeyRange { low, high };
        let options =
            LoadOptions { range, spare_bytes, generation, ..LoadOptions::new(config, info.partition.id) };
        let came = match config.keys() {
            Keys::Numbers => Came::Numbers(Pairs::default()),
            Keys::Bytes => Came::Bytes(BytePairs::default()),
        };
        Ok(Self { begin, options, came })
    }

    fn is_complete(&self) -> bool {
        self.came.count().0 >= self.begin.keys
    }

    fn take(&mut self, content: &[u8]) -> Result<(), Status> {
        let more = proto::LoadPairs::decode(content)
            .map_err(|error| Status::invalid_argument(format!("the content is no pairs: {error}")))?;
        match &mut self.came {
            Came::Numbers(pairs) => pairs.take(more, &self.begin, self.options.range),
            Came::Bytes(pairs) => take_bytes(pairs, &more, &self.begin),
        }
    }

    fn build(self, bounds: &Bounds, storage: &mut TreeStorage) -> Result<Built<Self>, Status> {
        let Self { begin, options, came } = self;
        let (expected, (_, found)) = (begin.value_bytes, came.count());
        if found != expected {
            return Err(Status::invalid_argument(format!(
                "{expected} bytes of values were announced, {found} came"
            )));
        }
        let built = match came {
            Came::Numbers(mut pairs) => {
                let keys = std::mem::take(&mut pairs.keys);
                let mut values = InOrder { keys: &keys, pairs: &pairs, at: 0 };
                build_in(storage, &options, bounds.region_bytes, Load::Numbers(&keys, &mut values))
            }
            Came::Bytes(pairs) => {
                build_in(storage, &options, bounds.region_bytes, Load::<InOrder<'_>>::Bytes(&pairs))
            }
        };
        // A load without keys is meant to leave none.
        let tree = LoadedTree { origin: Origin::Meant, ..built.map_err(refuse)? };
        let kept = tree.kept();
        Ok((Loaded::from(tree), kept))
    }
}

/// The shape of the tree that is asked for, after one of another shape.
fn shape(begin: &proto::LoadBegin, former: &TreeConfig) -> Result<TreeConfig, Status> {
    let values = begin.inline_value_bytes.map(layout).transpose();
    let values =
        values.map_err(|error| Status::invalid_argument(error.to_string()))?.map(|(values, _)| values);
    let leaves = begin.buckets.map(|buckets| if buckets { LeafKind::Buckets } else { LeafKind::Plain });
    let keys = begin.byte_keys.map(|bytes| if bytes { Keys::Bytes } else { Keys::Numbers });
    let code = begin.key_code.as_deref().map(KeyCode::new).transpose();
    let code = code.map_err(|error| Status::invalid_argument(error.to_string()))?;
    let shape = Layout { values, leaves, keys, code }.after(former);
    shape.map_err(|error| Status::invalid_argument(error.to_string()))
}

fn refuse(error: BuildError) -> Status {
    match error {
        BuildError::Load(error) => Status::invalid_argument(error.to_string()),
        BuildError::Folder(error) => Status::internal(error.to_string()),
    }
}

/// Takes keys of bytes, each with its value as its record has them.
fn take_bytes(
    pairs: &mut BytePairs,
    more: &proto::LoadPairs,
    begin: &proto::LoadBegin,
) -> Result<(), Status> {
    let refuse = |reason: String| Err(Status::invalid_argument(reason));
    let proto::LoadPairs { keys, lengths, values } = more;
    let sum: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
    if sum != values.len() as u64 || lengths.is_empty() || !keys.is_empty() {
        let (came, bytes) = (lengths.len(), values.len());
        return refuse(format!("{came} pairs of {sum} bytes came in {bytes}, with {} numbers", keys.len()));
    }
    let all = (pairs.len() + lengths.len()) as u64;
    let bytes = (pairs.content_bytes() + values.len()) as u64;
    if all > begin.keys || bytes > begin.value_bytes {
        let (keys, announced) = (begin.keys, begin.value_bytes);
        return refuse(format!("{all} pairs of {bytes} bytes came, {keys} of {announced} were announced"));
    }
    let mut rest = &values[..];
    for &length in lengths {
        let record;
        (record, rest) = rest.split_at(length as usize);
        pairs.push_record(record).or_else(|error| refuse(error.to_string()))?;
    }
    Ok(())
}

/// Keys, and their values one after the other.
#[derive(Default)]
struct Pairs {
    keys: Vec<u64>,
    /// End of each value.
    ends: Vec<u64>,
    values: Vec<u8>,
}

impl Pairs {
    fn take(
        &mut self,
        more: proto::LoadPairs,
        begin: &proto::LoadBegin,
        range: KeyRange,
    ) -> Result<(), Status> {
        let refuse = |reason: String| Err(Status::invalid_argument(reason));
        let proto::LoadPairs { keys, lengths, values } = more;
        if keys.len() != lengths.len() || keys.is_empty() {
            return refuse(format!("{} keys came with {} lengths", keys.len(), lengths.len()));
        }
        let sum: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        let longest = lengths.iter().max().copied().unwrap_or(0);
        if sum != values.len() as u64 || longest > MAX_VALUE {
            return refuse(format!(
                "values of {} bytes came with lengths of {sum} together, the longest {longest}; up to {MAX_VALUE} are allowed",
                values.len()
            ));
        }
        let (all, bytes) = ((self.keys.len() + keys.len()) as u64, (self.values.len() + values.len()) as u64);
        if all > begin.keys || bytes > begin.value_bytes {
            return refuse(format!(
                "{all} keys with {bytes} bytes of values came, {} with {} were announced",
                begin.keys, begin.value_bytes
            ));
        }
        for &key in &keys {
            if self.keys.last().is_some_and(|&last| last >= key) || !range.contains(key) {
                return refuse(format!("key {key:#x} is not above the one before, or not within {range}"));
            }
            self.keys.push(key);
        }
        let mut end = self.values.len() as u64;
        self.ends.extend(lengths.iter().map(|&length| {
            end += u64::from(length);
            end
        }));
        self.values.extend_from_slice(&values);
        Ok(())
    }
}

/// Values for a bulk load, which asks for them in the order of their keys, twice.
struct InOrder<'p> {
    keys: &'p [u64],
    pairs: &'p Pairs,
    at: usize,
}

impl InOrder<'_> {
    fn value(&mut self, key: u64) -> &[u8] {
        if self.keys.get(self.at) != Some(&key) {
            self.at = match self.keys.get(self.at + 1) {
                Some(&next) if next == key => self.at + 1,
                _ => self.keys.partition_point(|&other| other < key),
            };
        }
        let begin = self.at.checked_sub(1).map_or(0, |before| self.pairs.ends[before]);
        &self.pairs.values[begin as usize..self.pairs.ends[self.at] as usize]
    }
}

impl ValueSource for InOrder<'_> {
    fn length(&mut self, key: u64) -> u32 {
        self.value(key).len() as u32
    }

    fn fill(&mut self, key: u64, out: &mut [u8]) {
        out.copy_from_slice(self.value(key));
    }
}
