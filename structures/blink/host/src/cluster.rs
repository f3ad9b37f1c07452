//! A key set split over several memory servers.

use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{KeyRange, Regions, SuperRoot, TopReader, TreeTop, WalkError, separator};
use fatbtree_memserver::{MemoryServer, ServerError, ServerOptions};
use fatbtree_verbs::Device;

use crate::TreeServer;
use crate::load::{BytePairs, LoadError, LoadOptions, LoadedTree, bulk_load, bulk_load_bytes};
use crate::values::ValueSource;

/// Memory servers 0, 1, ... with contiguous partitions, and the super-root over them.
#[derive(Debug)]
pub struct Cluster {
    /// One tree per server, in key order.
    pub trees: Vec<LoadedTree>,
    /// Partition of each key.
    pub roots: SuperRoot,
}

impl Cluster {
    /// All regions, to be read without a network.
    #[must_use]
    pub fn memory(&self) -> Regions {
        Regions::new(self.trees.iter().map(|tree| (tree.partition.id, Arc::clone(&tree.region))))
    }

    /// The tops of all trees, for a planner of switch caches that is in the same process.
    ///
    /// # Errors
    /// When clients have written to the trees meanwhile and left them broken.
    pub fn tops(&self) -> Result<Vec<TreeTop>, WalkError> {
        let memory = self.memory();
        let read = |tree: &LoadedTree| {
            let mut reader = TopReader::new(&tree.config, &tree.partition, usize::MAX);
            loop {
                if let Some(top) = reader.read(&memory, usize::MAX)? {
                    return Ok(top);
                }
            }
        };
        self.trees.iter().map(read).collect()
    }

    /// A memory server for each tree, on the device that `device` makes for it; each draws its own numbers from the one seed.
    ///
    /// # Errors
    /// See [`MemoryServer::new`].
    pub fn serve<D: Device>(
        self,
        options: &ServerOptions,
        seed: u64,
        mut device: impl FnMut(u16) -> D,
    ) -> Result<Vec<TreeServer<D>>, ServerError> {
        let serve = |tree: LoadedTree| {
            let id = tree.partition.id;
            MemoryServer::new(device(id), tree, options, seed ^ u64::from(id) << 32)
        };
        self.trees.into_iter().map(serve).collect()
    }
}

/// Splits strictly ascending keys into as many contiguous parts of equal count (±1) as there are servers, and loads
/// each. Partition 0 begins at key 0, every other one at the [`separator`] of its first key and the one before; the last has no
/// upper end.
/// `options.server` and `options.range` are not used.
///
/// # Errors
/// See [`LoadError`]; every server needs at least one key.
pub fn load_cluster<S: ValueSource>(
    options: &LoadOptions,
    servers: u16,
    keys: &[u64],
    values: &mut S,
) -> Result<Cluster, LoadError> {
    load_parts(options, divide(keys, servers)?.into_iter(), keys, values)
}

/// Divides strictly ascending keys by count (±1), as [`load_cluster`] does. Returns the low key of each
/// server's partition, and the places of its keys.
///
/// # Errors
/// Every server needs at least one key; keys out of order are noticed at the borders.
pub fn divide(keys: &[u64], servers: u16) -> Result<Vec<(u64, Range<usize>)>, LoadError> {
    if servers == 0 || keys.len() < usize::from(servers) {
        return Err(LoadError::TooFewKeys { keys: keys.len(), servers });
    }
    let begin = |server: u16| keys.len() * usize::from(server) / usize::from(servers);
    let low = |server: u16| match begin(server) {
        0 => Ok(0),
        at => match (keys[at - 1], keys[at]) {
            (last, first) if last < first => Ok(separator(last, first)),
            (last, key) if last == key => Err(LoadError::DuplicateKey { key }),
            (_, key) => Err(LoadError::Unsorted { key, position: at }),
        },
    };
    (0..servers).map(|server| Ok((low(server)?, begin(server)..begin(server + 1)))).collect()
}

/// Divides sorted keys of bytes by count, as far as their words differ. Returns what [`divide`] does. A border is the word of the shortest key
/// between those on its two sides, which people can read.
///
/// # Errors
/// Every server needs a key whose word is greater than those of the server before.
pub fn divide_pairs(
    pairs: &BytePairs,
    code: KeyCode,
    servers: u16,
) -> Result<Vec<(u64, Range<usize>)>, LoadError> {
    let words: Vec<u64> = (0..pairs.len()).map(|at| code.word(pairs.key(at))).collect();
    let low = |begin: usize| {
        let Some(last) = begin.checked_sub(1) else { return 0 };
        let (last, first) = (pairs.key(last), pairs.key(begin));
        let common = last.iter().zip(first).take_while(|(one, other)| one == other).count();
        let text = str::from_utf8(first).ok();
        let is_whole = |end: &usize| text.is_none_or(|text| text.is_char_boundary(*end));
        let end = (common + 1..first.len()).find(is_whole).unwrap_or(first.len());
        let word = code.word(&first[..end]);
        if word > words[begin - 1] { word } else { words[begin] }
    };
    let places = divide_words(&words, servers)?;
    Ok(places.into_iter().map(|places| (low(places.start), places)).collect())
}

/// Divides ascending words by count, as far as they differ.
///
/// # Errors
/// As for [`divide_pairs`].
pub fn divide_words(words: &[u64], servers: u16) -> Result<Vec<Range<usize>>, LoadError> {
    if servers == 0 || words.len() < usize::from(servers) {
        return Err(LoadError::TooFewKeys { keys: words.len(), servers });
    }
    let mut begins = vec![0];
    for server in 1..servers {
        let middle = words[words.len() * usize::from(server) / usize::from(servers)];
        // The border nearest to the middle: words on its two sides differ.
        let before = words.partition_point(|word| *word < middle);
        let behind = words.partition_point(|word| *word <= middle);
        let last = begins.last().copied().unwrap_or(0);
        let border = [before, behind].into_iter().find(|&at| at > last && at < words.len());
        begins.push(border.ok_or(LoadError::TooAlike { servers })?);
    }
    let ends = begins.iter().skip(1).copied().chain([words.len()]);
    Ok(begins.iter().zip(ends).map(|(&begin, end)| begin..end).collect())
}

/// Splits sorted keys of bytes over servers, as [`load_cluster`] does with numbers. They choose the code.
///
/// # Errors
/// See [`LoadError`]; every server needs at least one key.
pub fn load_cluster_bytes(
    options: &LoadOptions,
    servers: u16,
    pairs: &BytePairs,
) -> Result<Cluster, LoadError> {
    let config = options.config.with_code(pairs.code());
    let parts = divide_pairs(pairs, config.code(), servers)?;
    let options = LoadOptions { config, ..*options };
    let build = |places: Range<usize>, options: &LoadOptions| bulk_load_bytes(options, &pairs.part(places));
    build_parts(&options, parts.into_iter(), build)
}

/// Splits strictly ascending keys at given borders, and loads each part: partition `n` begins at `lows[n]` and ends where the
/// next one begins; the last has no upper end. A partition may be without keys. `options.server` and `options.range` are
/// not used.
///
/// ```
/// use fatbtree_blink::TreeConfig;
/// use fatbtree_blink_host::{LoadOptions, load_ranges, seeded};
///
/// let keys: Vec<u64> = (0..1000).collect();
/// let options = LoadOptions::new(TreeConfig::default(), 0);
/// let cluster = load_ranges(&options, &[0, 100, 5000], &keys, &mut seeded(42, 64))?;
/// assert_eq!(cluster.trees.iter().map(|tree| tree.counts.keys).collect::<Vec<_>>(), [100, 900, 0]);
/// assert_eq!(cluster.roots.partition_of(99).id, 0);
/// # Ok::<(), fatbtree_blink_host::LoadError>(())
/// ```
///
/// # Errors
/// See [`LoadError`]; `lows` are strictly ascending and begin with 0.
pub fn load_ranges<S: ValueSource>(
    options: &LoadOptions,
    lows: &[u64],
    keys: &[u64],
    values: &mut S,
) -> Result<Cluster, LoadError> {
    let ascending = lows.first() == Some(&0) && lows.is_sorted_by(|a, b| a < b);
    if !ascending || lows.len() > usize::from(u16::MAX) {
        return Err(LoadError::Borders { servers: lows.len() });
    }
    // Where keys are out of order each part notices, or finds a key outside of its range.
    let begin = |at: usize| lows.get(at).map_or(keys.len(), |low| keys.partition_point(|key| key < low));
    let parts = lows.iter().enumerate().map(|(at, &low)| (low, begin(at)..begin(at + 1).max(begin(at))));
    load_parts(options, parts, keys, values)
}

/// Loads the parts of `keys` onto servers 0, 1, ...; a part is its low key and the places of its keys.
fn load_parts<S: ValueSource>(
    options: &LoadOptions,
    parts: impl Iterator<Item = (u64, Range<usize>)>,
    keys: &[u64],
    values: &mut S,
) -> Result<Cluster, LoadError> {
    let build = |places: Range<usize>, options: &LoadOptions| bulk_load(options, &keys[places], values);
    build_parts(options, parts, build)
}

fn build_parts(
    options: &LoadOptions,
    parts: impl Iterator<Item = (u64, Range<usize>)>,
    mut build: impl FnMut(Range<usize>, &LoadOptions) -> Result<LoadedTree, LoadError>,
) -> Result<Cluster, LoadError> {
    let mut parts = parts.peekable();
    let mut trees = Vec::new();
    let mut server = 0;
    while let Some((low, places)) = parts.next() {
        let high = parts.peek().map(|(low, _)| *low);
        let range = KeyRange { low, high };
        if range.is_below(low) {
            // Keys out of order across the border of two partitions; within one, the load notices.
            return Err(LoadError::Unsorted { key: high.unwrap_or(low), position: places.end });
        }
        trees.push(build(places, &LoadOptions { server, range, ..*options })?);
        server += 1;
    }
    let roots = SuperRoot::new(trees.iter().map(|tree: &LoadedTree| tree.partition).collect());
    Ok(Cluster { trees, roots: roots.expect("each partition begins where the one before it ends") })
}
