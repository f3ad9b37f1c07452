//! The loader's side: keys are divided among the servers of trees.

use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::{KeyRange, Keys, LeafKind, TreeConfig};
use fatbtree_memserver::grpc::{Client, Content, LoadData, LoadProgress, LoadServersError, load_all};
use prost::Message as _;
use tokio::sync::mpsc;

use super::convert::layout_code;
use super::proto;
use crate::TreeServerInfo;
use crate::cluster::{divide, divide_pairs};
use crate::load::{BytePairs, Layout, LoadError};
use crate::tenant::TreeInfo;

/// Bytes of a message, about.
const MESSAGE: usize = 128 << 10;

/// Bytes of a key in a message, about.
const KEY_BYTES: usize = 12;

/// Errors from a load of trees.
#[derive(Debug, thiserror::Error)]
pub enum LoadTreesError {
    /// The keys cannot be divided.
    #[error(transparent)]
    Keys(#[from] LoadError),
    /// A server has failed.
    #[error(transparent)]
    Servers(#[from] LoadServersError),
    /// A server has not done as it was asked.
    #[error(
        "memory server {server} has loaded its keys in the layout that it had: it runs an older release, which knows no other; update it, and load \
         again"
    )]
    Layout {
        /// Its number.
        server: u16,
    },
}

/// Divides the keys among servers by their count, in the order in which the servers are given with their partitions' numbers, and fills them
/// all with trees of this layout. None serves its new tree before all have built theirs. A loader that ends before that leaves all as they were.
///
/// # Errors
/// See [`LoadTreesError`].
pub async fn load_servers(
    servers: Vec<(u16, Client)>,
    data: Arc<dyn LoadData>,
    layout: Layout,
    tell: impl FnMut(LoadProgress),
) -> Result<Vec<TreeServerInfo>, LoadTreesError> {
    let parts = divide(data.keys(), servers.len() as u16)?;
    let contents = |number, range, places| {
        let (from, data) = (Arc::clone(&data), Arc::clone(&data));
        let value_bytes = |places: Range<usize>| places.map(|at| u64::from(from.length(at))).sum();
        let next = move |places: &mut Range<usize>| numbers(&*data, places);
        content(begin(range, layout, &places, value_bytes), number, places, next)
    };
    load_parts(servers, parts, layout, contents, tell).await
}

/// The same with keys of bytes, which are sorted. They choose the code, whatever the layout says.
///
/// # Errors
/// See [`LoadTreesError`].
pub async fn load_servers_bytes(
    servers: Vec<(u16, Client)>,
    pairs: Arc<BytePairs>,
    layout: Layout,
    tell: impl FnMut(LoadProgress),
) -> Result<Vec<TreeServerInfo>, LoadTreesError> {
    let code = pairs.code();
    let parts = divide_pairs(&pairs, code, servers.len() as u16)?;
    let layout = Layout { keys: Some(Keys::Bytes), code: Some(code), ..layout };
    let contents = |number, range, places| {
        let (from, pairs) = (Arc::clone(&pairs), Arc::clone(&pairs));
        let bytes = |places: Range<usize>| places.map(|at| from.record(at).len() as u64).sum();
        let next = move |places: &mut Range<usize>| records(&pairs, places);
        content(begin(range, layout, &places, bytes), number, places, next)
    };
    load_parts(servers, parts, layout, contents, tell).await
}

async fn load_parts(
    servers: Vec<(u16, Client)>,
    parts: Vec<(u64, Range<usize>)>,
    layout: Layout,
    content: impl Fn(u16, KeyRange, Range<usize>) -> Content,
    tell: impl FnMut(LoadProgress),
) -> Result<Vec<TreeServerInfo>, LoadTreesError> {
    let highs: Vec<_> = parts.iter().skip(1).map(|(low, _)| Some(*low)).chain([None]).collect();
    let all = servers.into_iter().zip(parts).zip(highs);
    let contents = all.map(|(((number, server), (low, places)), high)| {
        (server, content(number, KeyRange { low, high }, places))
    });
    let loaded = load_all::<TreeInfo>(contents.collect(), tell).await?;
    check(layout, loaded.iter().map(|info| (info.server, info.config)))?;
    Ok(loaded)
}

/// Whether servers have loaded trees of this layout. One of an older release has not heard of it.
fn check(layout: Layout, mut loaded: impl Iterator<Item = (u16, TreeConfig)>) -> Result<(), LoadTreesError> {
    match loaded.find(|(_, config)| layout.after(config) != Ok(*config)) {
        Some((server, _)) => Err(LoadTreesError::Layout { server }),
        None => Ok(()),
    }
}

/// Has a server begin anew with an empty tree of this layout for a range of keys. So it is told that this is meant, where it has lost its tree.
///
/// # Errors
/// When the server refuses or fails; it is as it was then, or has the empty tree already.
pub async fn load_empty(
    mut server: Client,
    range: KeyRange,
    layout: Layout,
) -> Result<TreeServerInfo, LoadTreesError> {
    let number =
        server.info::<TreeInfo>().await.map_err(|source| LoadServersError::Nothing { source })?.server;
    let content =
        content(begin(range, layout, &(0..0), |_| 0), number, 0..0, |_| proto::LoadPairs::default());
    let info = load_all::<TreeInfo>(vec![(server, content)], |_| {}).await?.remove(0);
    check(layout, [(info.server, info.config)].into_iter())?;
    Ok(info)
}

/// Announces so many keys, whose values, or pairs, have so many bytes.
fn begin(
    range: KeyRange,
    layout: Layout,
    places: &Range<usize>,
    bytes: impl FnOnce(Range<usize>) -> u64,
) -> proto::LoadBegin {
    proto::LoadBegin {
        low_key: range.low,
        high_key: range.high,
        keys: places.len() as u64,
        empty: places.is_empty(),
        value_bytes: bytes(places.clone()),
        inline_value_bytes: layout.values.map(|values| layout_code(values, LeafKind::Plain)),
        buckets: layout.leaves.map(|leaves| leaves == LeafKind::Buckets),
        byte_keys: layout.keys.map(|keys| keys == Keys::Bytes),
        key_code: layout.code.map(|code| code.description().to_vec()),
    }
}

/// Keys for one server. A task makes their messages, one ahead: `next` takes some keys for the next one.
fn content(
    begin: proto::LoadBegin,
    server: u16,
    mut places: Range<usize>,
    next: impl Fn(&mut Range<usize>) -> proto::LoadPairs + Send + 'static,
) -> Content {
    let (send, messages) = mpsc::channel(1);
    tokio::spawn(async move {
        while !places.is_empty() {
            let pairs = next(&mut places);
            // A load that has ended takes no more.
            if send.send((pairs.encode_to_vec(), pairs.lengths.len() as u64)).await.is_err() {
                return;
            }
        }
    });
    Content { server, announced: begin.encode_to_vec(), messages }
}

fn numbers(data: &dyn LoadData, places: &mut Range<usize>) -> proto::LoadPairs {
    let mut pairs = proto::LoadPairs::default();
    while pairs.values.len() + pairs.keys.len() * KEY_BYTES < MESSAGE
        && let Some(at) = places.next()
    {
        pairs.keys.push(data.keys()[at]);
        pairs.lengths.push(data.length(at));
        data.append(at, &mut pairs.values);
    }
    pairs
}

fn records(data: &BytePairs, places: &mut Range<usize>) -> proto::LoadPairs {
    let mut pairs = proto::LoadPairs::default();
    while pairs.values.len() < MESSAGE
        && let Some(at) = places.next()
    {
        pairs.lengths.push(data.record(at).len() as u32);
        pairs.values.extend_from_slice(data.record(at));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use fatbtree_blink::ValueLayout;
    use fatbtree_blink::layers::KeyCode;

    use super::*;

    #[test]
    fn a_server_that_kept_its_own_layout_is_named() {
        let own = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
        let (values, leaves) = (Some(ValueLayout::ByLength(20)), Some(LeafKind::Buckets));
        let keys = Some(Keys::Bytes);
        let layouts = [
            Layout { values, ..Layout::default() },
            Layout { leaves, ..Layout::default() },
            Layout { keys, ..Layout::default() },
            Layout { values, leaves, keys, code: KeyCode::new(&[0, 0, b'u', 1]).ok() },
        ];
        for layout in layouts {
            let asked = layout.after(&own).unwrap();
            assert!(check(layout, [(0, asked), (1, asked)].into_iter()).is_ok());
            let refused = check(layout, [(0, asked), (1, own)].into_iter()).unwrap_err().to_string();
            assert!(
                refused.starts_with("memory server 1 has loaded its keys in the layout that it had"),
                "{refused}"
            );
        }
        assert!(check(Layout::default(), [(0, own)].into_iter()).is_ok());
    }
}
