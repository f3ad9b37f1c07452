//! The loader's side: keys are divided among the servers of trees.

use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::{KeyRange, Keys, LeafKind, TreeConfig};
use fatbtree_memserver::grpc::{
    Client, Content, KeysAndValues, LoadData, LoadProgress, LoadServersError, load_all,
};
use prost::Message as _;
use tokio::sync::mpsc;

use super::convert::layout_code;
use super::proto;
use crate::TreeServerInfo;
use crate::cluster::divide;
use crate::load::{Layout, LoadError};
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
    let highs: Vec<_> = parts.iter().skip(1).map(|(low, _)| Some(*low)).chain([None]).collect();
    let all = servers.into_iter().zip(parts).zip(highs);
    let contents = all.map(|(((number, server), (low, places)), high)| {
        (server, content(number, KeyRange { low, high }, layout, Arc::clone(&data), places))
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
    let content = content(number, range, layout, Arc::new(KeysAndValues::default()), 0..0);
    let info = load_all::<TreeInfo>(vec![(server, content)], |_| {}).await?.remove(0);
    check(layout, [(info.server, info.config)].into_iter())?;
    Ok(info)
}

/// Part of the keys for one server. A task makes its messages, one ahead.
fn content(
    server: u16,
    range: KeyRange,
    layout: Layout,
    data: Arc<dyn LoadData>,
    places: Range<usize>,
) -> Content {
    let begin = proto::LoadBegin {
        low_key: range.low,
        high_key: range.high,
        keys: places.len() as u64,
        empty: places.is_empty(),
        value_bytes: places.clone().map(|at| u64::from(data.length(at))).sum(),
        inline_value_bytes: layout.values.map(|values| layout_code(values, LeafKind::Plain)),
        buckets: layout.leaves.map(|leaves| leaves == LeafKind::Buckets),
        byte_keys: layout.keys.map(|keys| keys == Keys::Bytes),
    };
    let (send, messages) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut at = places.start;
        while at < places.end {
            let mut pairs = proto::LoadPairs::default();
            while at < places.end && pairs.values.len() + pairs.keys.len() * KEY_BYTES < MESSAGE {
                pairs.keys.push(data.keys()[at]);
                pairs.lengths.push(data.length(at));
                data.append(at, &mut pairs.values);
                at += 1;
            }
            // A load that has ended takes no more.
            if send.send((pairs.encode_to_vec(), pairs.keys.len() as u64)).await.is_err() {
                return;
            }
        }
    });
    Content { server, announced: begin.encode_to_vec(), messages }
}

#[cfg(test)]
mod tests {
    use fatbtree_blink::ValueLayout;

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
            Layout { values, leaves, keys },
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
