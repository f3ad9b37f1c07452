//! Loads of keys of bytes: trees that are empty, then a client that inserts.

use std::pin::pin;

use anyhow::{Context, Result, anyhow, bail};
use fatbtree_blink::layers::{MAX_KEY_BYTES, first_word};
use fatbtree_blink::{KeyRange, Keys, separator};
use fatbtree_blink_host::grpc::load_empty;
use fatbtree_blink_host::{Layout, TreeInfo};
use fatbtree_processes::Adapter;
use fatbtree_registry::{Kind, Tree};
use fatbtree_remote_memory::Structure as _;
use fatbtree_topology::Cluster;
use fatbtree_trust::OPERATOR;

use super::byte_input::ByteInput;
use super::inserts::{change_to, insert_all};
use super::{Arguments, LoadResult, LoadedServer, connect_to_fill, told};
use crate::load::following::connected;
use crate::records::check_enough;

type TreeClient = <Tree as Kind>::Client<Adapter>;

/// Has all servers begin anew with trees of byte keys, or goes on with a load that was stopped, and inserts the keys.
pub(super) fn load(arguments: &Arguments, cluster: &Cluster, pairs: &ByteInput) -> Result<LoadResult> {
    if let Some(at) = (0..pairs.len()).find(|&at| pairs.key(at).len() > MAX_KEY_BYTES) {
        let found = pairs.key(at).len();
        let source = arguments.keys.as_deref().unwrap_or_default();
        bail!("{source}: a key of {found} bytes; up to {MAX_KEY_BYTES} are possible");
    }
    check_enough(pairs.len() as u64, cluster.servers().len() as u64)?;
    let words: Vec<u64> = (0..pairs.len()).map(|at| first_word(pairs.key(at))).collect();
    let ranges = ranges(&words, cluster.servers().len())?;
    let layout = Layout { keys: Some(Keys::Bytes), ..arguments.layout.given_layout() };
    let trust = crate::topology::trust(cluster, &arguments.cluster, OPERATOR)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let trees = runtime.context("starting threads")?.block_on(async {
        let mut signalled = pin!(fatbtree_processes::stop_signal().context("listening for signals")?);
        let connecting = async {
            let mut servers = vec![];
            for server in cluster.servers() {
                let is_meant = arguments.replace || arguments.resume;
                servers.push((server, connect_to_fill(server, &trust, is_meant).await?));
            }
            let mut trees = vec![];
            for ((server, mut client), range) in servers.into_iter().zip(&ranges) {
                let info = match arguments.resume {
                    true => client.info::<TreeInfo>().await.map_err(anyhow::Error::from),
                    false => load_empty(client, *range, layout).await.map_err(anyhow::Error::from),
                };
                let info = info.with_context(|| format!("memory server {}", server.name))?;
                trees.push((told(server.name.clone(), &info), info.partition.range));
            }
            anyhow::Ok(trees)
        };
        connected(connecting, &mut signalled).await
    })?;
    let put = async |client: &TreeClient, at: usize| {
        let answer = client.change_bytes(pairs.key(at), change_to(&pairs.value(at), arguments)).await;
        answer.ok_or_else(|| anyhow!("this structure has no keys of bytes"))
    };
    let done = insert_all(arguments, cluster, pairs.len(), put)?;
    let keys = pairs.len() as u64;
    let in_range = |range: KeyRange| words.iter().filter(|word| range.contains(**word)).count() as u64;
    let servers = trees.into_iter();
    Ok(LoadResult {
        keys,
        value_bytes: pairs.value_bytes(),
        seconds: done.seconds,
        keys_per_s: keys as f64 / done.seconds,
        servers: servers.map(|(server, range)| LoadedServer { keys: in_range(range), ..server }).collect(),
    })
}

/// Divides keys, of which these are the first words, among servers by their count, as far as the words differ.
fn ranges(words: &[u64], servers: usize) -> Result<Vec<KeyRange>> {
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
