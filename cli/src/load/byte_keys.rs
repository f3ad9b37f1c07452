//! Loads of keys of bytes: trees that are empty, then a client that inserts.

use std::path::Path;
use std::pin::pin;

use anyhow::{Context, Result, anyhow, bail};
use fatbtree_blink::layers::{MAX_KEY_BYTES, first_word};
use fatbtree_blink::{Contention, KeyRange, Keys, separator, value};
use fatbtree_blink_host::Layout;
use fatbtree_blink_host::grpc::load_empty;
use fatbtree_processes::{Adapter, ClientOptions, StructureProcess};
use fatbtree_registry::{Kind, Tree};
use fatbtree_remote_memory::{Change, Structure, mix};
use fatbtree_topology::Cluster;
use fatbtree_trust::OPERATOR;

use super::inserts::{PATIENCE, insert_all};
use super::{Arguments, LoadResult, connect_to_fill, told};
use crate::load::following::connected;
use crate::memserver::MadeValues;
use crate::records::{Pairs, byte_keys_of, check_enough};
use crate::structure::{client_of, open_client};

type TreeClient = <Tree as Kind>::Client<Adapter>;

/// Has all servers begin anew with trees of byte keys, and inserts the keys of a file.
pub(super) fn load(arguments: &Arguments, cluster: &Cluster, path: &Path) -> Result<LoadResult> {
    let (pairs, has_values) = byte_keys_of(path)?;
    if let Some(at) = (0..pairs.len()).find(|&at| pairs.key(at).len() > MAX_KEY_BYTES) {
        let found = pairs.key(at).len();
        bail!("{}: a key of {found} bytes; up to {MAX_KEY_BYTES} are possible", path.display());
    }
    check_enough(pairs.len() as u64, cluster.servers().len() as u64)?;
    let ranges = ranges(&pairs, cluster.servers().len())?;
    let layout = Layout { keys: Some(Keys::Bytes), ..arguments.layout.given_layout() };
    let trust = crate::topology::trust(cluster, &arguments.cluster, OPERATOR)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let emptied = runtime.context("starting threads")?.block_on(async {
        let mut signalled = pin!(fatbtree_processes::stop_signal().context("listening for signals")?);
        let connecting = async {
            let mut servers = vec![];
            for server in cluster.servers() {
                servers.push((server, connect_to_fill(server, &trust, arguments.replace).await?));
            }
            let mut emptied = vec![];
            for ((server, client), range) in servers.into_iter().zip(&ranges) {
                let info = load_empty(client, *range, layout).await;
                let info = info.with_context(|| format!("memory server {}", server.name))?;
                emptied.push(told(server.name.clone(), &info));
            }
            anyhow::Ok(emptied)
        };
        connected(connecting, &mut signalled).await
    })?;
    let described = client_of(cluster, arguments.client.as_deref())?;
    let trust = crate::topology::trust(cluster, &arguments.cluster, &described.name)?;
    let options = |host, nic| ClientOptions {
        lanes: 4,
        trust: trust.clone(),
        patience: PATIENCE,
        contention: Contention::SMART,
        ..ClientOptions::new(host, nic, cluster.servers())
    };
    let open = |host, nic| StructureProcess::<TreeClient>::open(&options(host, nic));
    let mut process = open_client(&arguments.nic, cluster, described, PATIENCE, open)?;
    process.stop_at_signals()?;
    let MadeValues { seed, value_bytes } = arguments.values;
    let value = |at: usize| match has_values {
        true => pairs.value(at).to_vec(),
        false => {
            let mut made = vec![0; value_bytes as usize];
            value::fill(number_of(pairs.key(at)), seed, &mut made);
            made
        }
    };
    let client = process.client().clone();
    let done = insert_all(&mut process, pairs.len(), async |at| {
        let (key, value) = (pairs.key(at), value(at));
        loop {
            let answer = client.change_bytes(key, Change::Upsert(&value)).await;
            let answer = answer.ok_or_else(|| anyhow!("this structure has no keys of bytes"))?;
            match answer.result {
                Ok(is_new) => return Ok((is_new, answer.round_trips)),
                Err(error) if TreeClient::is_unknown(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    })?;
    process.close();
    let count = pairs.len() as u64;
    let in_range = |range: &KeyRange| {
        let keys = (0..pairs.len()).map(|at| first_word(pairs.key(at)));
        keys.filter(|word| range.contains(*word)).count() as u64
    };
    let servers = emptied.into_iter().zip(&ranges);
    Ok(LoadResult {
        keys: count,
        value_bytes: (0..pairs.len()).map(|at| value(at).len() as u64).sum(),
        seconds: done.seconds,
        keys_per_s: count as f64 / done.seconds,
        servers: servers
            .map(|(server, range)| super::LoadedServer { keys: in_range(range), ..server })
            .collect(),
    })
}

/// A number for the value that is made for a key.
fn number_of(key: &[u8]) -> u64 {
    key.chunks(8).fold(key.len() as u64, |number, chunk| {
        let word = chunk.iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
        mix(number.rotate_left(7) ^ mix(word ^ 1))
    })
}

/// Divides keys among servers by their count, as far as their first eight bytes differ.
fn ranges(pairs: &Pairs<Vec<u8>>, servers: usize) -> Result<Vec<KeyRange>> {
    let words: Vec<u64> = (0..pairs.len()).map(|at| first_word(pairs.key(at))).collect();
    let mut lows = vec![0];
    for server in 1..servers {
        let middle = words[words.len() * server / servers];
        // The border nearest to the middle: words on its two sides differ.
        let before = words.partition_point(|word| *word < middle);
        let behind = words.partition_point(|word| *word <= middle);
        let border = [before, behind]
            .into_iter()
            .filter(|&at| at > 0 && at < words.len())
            .map(|at| separator(words[at - 1], words[at]))
            .find(|low| lows.last().is_some_and(|last| last < low));
        let Some(low) = border else {
            bail!(
                "the keys differ too little in their first eight bytes to be divided among {servers} memory servers: leave out what all of \
                 them begin with, or take fewer servers"
            );
        };
        lows.push(low);
    }
    let highs = lows.iter().skip(1).copied().map(Some).chain([None]);
    Ok(lows.iter().copied().zip(highs).map(|(low, high)| KeyRange { low, high }).collect())
}
