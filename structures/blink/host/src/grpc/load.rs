//! The loader's side: keys are divided among the servers of trees.

use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::KeyRange;
use fatbtree_memserver::grpc::{
    Client, ClientError, Content, KeysAndValues, LoadData, LoadProgress, LoadServersError, load_all,
};
use prost::Message as _;
use tokio::sync::mpsc;

use super::proto;
use crate::TreeServerInfo;
use crate::cluster::divide;
use crate::load::LoadError;
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
}

/// Divides the keys among servers by their count, in the order in which the servers are given with their partitions' numbers, and fills them
/// all. None serves its new tree before all have built theirs. A loader that ends before that leaves all as they were.
///
/// # Errors
/// See [`LoadTreesError`].
pub async fn load_servers(
    servers: Vec<(u16, Client)>,
    data: Arc<dyn LoadData>,
    tell: impl FnMut(LoadProgress),
) -> Result<Vec<TreeServerInfo>, LoadTreesError> {
    let parts = divide(data.keys(), servers.len() as u16)?;
    let highs: Vec<_> = parts.iter().skip(1).map(|(low, _)| Some(*low)).chain([None]).collect();
    let all = servers.into_iter().zip(parts).zip(highs);
    let contents = all.map(|(((number, server), (low, places)), high)| {
        (server, content(number, KeyRange { low, high }, Arc::clone(&data), places))
    });
    Ok(load_all::<TreeInfo>(contents.collect(), tell).await?)
}

/// Has a server begin anew with an empty tree for a range of keys. So it is told that this is meant, where it has lost its tree.
///
/// # Errors
/// When the server refuses or fails; it is as it was then, or has the empty tree already.
pub async fn load_empty(mut server: Client, range: KeyRange) -> Result<TreeServerInfo, ClientError> {
    let number = server.info::<TreeInfo>().await?.server;
    let content = content(number, range, Arc::new(KeysAndValues::default()), 0..0);
    match load_all::<TreeInfo>(vec![(server, content)], |_| {}).await {
        Ok(mut infos) => Ok(infos.remove(0)),
        Err(LoadServersError::Nothing { source } | LoadServersError::Some { source, .. }) => Err(source),
    }
}

/// Part of the keys for one server. A task makes its messages, one ahead.
fn content(server: u16, range: KeyRange, data: Arc<dyn LoadData>, places: Range<usize>) -> Content {
    let begin = proto::LoadBegin {
        low_key: range.low,
        high_key: range.high,
        keys: places.len() as u64,
        empty: places.is_empty(),
        value_bytes: places.clone().map(|at| u64::from(data.length(at))).sum(),
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
