//! Calls of a tree's own services.

use std::future::Future;

use fatbtree_blink::{GlobalAddress, LookupBytes, TreeTop};
use fatbtree_memserver::grpc::{Client, ClientError, MessageError};
use fatbtree_query::{Identity, Key};
use tokio_stream::StreamExt;
use tonic::transport::Channel;

use super::proto;
use super::proto::tree_client::TreeClient;
use crate::finder::{KeyPlaces, MAX_LOCATE_KEYS};

/// Nodes of the largest snapshot that is believed.
const SNAPSHOT_NODES: u64 = 1 << 24;

/// Bytes of the largest message that is read; a snapshot's have about 256 KB.
const MESSAGE_BYTES: usize = 1 << 20;

/// Keys that are located at a time.
const LOCATE_KEYS: usize = MAX_LOCATE_KEYS / 2;

/// Requests to locate keys that are on their way at once.
const LOCATE_REQUESTS: usize = 8;

/// Calls that only a memory server of a tree answers. Each has the deadline of the [`Client`], and its errors.
pub trait TreeCalls {
    /// Asks for the top of the tree.
    ///
    /// # Errors
    /// Also when the stream breaks off.
    fn snapshot(&mut self) -> impl Future<Output = Result<TreeTop, ClientError>> + Send;

    /// Asks for the places of keys: the record or, where values are in the leaves, the leaf; one for each key, in their
    /// order. `None` for keys that are not there, and for records that an index read cannot bring.
    ///
    /// # Errors
    /// See [`ClientError`].
    fn locate(&mut self, keys: &[u64]) -> impl Future<Output = Result<KeyPlaces, ClientError>> + Send;

    /// Asks for numbers and keys for queries, for `count` clients; `None` where queries need no keys. They are good at
    /// all memory servers of the cluster.
    ///
    /// # Errors
    /// See [`ClientError`].
    fn query_keys(
        &mut self,
        count: u16,
    ) -> impl Future<Output = Result<Option<Vec<Identity>>, ClientError>> + Send;
}

fn stub(client: &Client) -> TreeClient<Channel> {
    TreeClient::new(client.channel()).max_decoding_message_size(MESSAGE_BYTES)
}

impl TreeCalls for Client {
    async fn snapshot(&mut self) -> Result<TreeTop, ClientError> {
        const CALL: &str = "for a snapshot";
        let mut stub = stub(self);
        let mut stream = self.reply(CALL, stub.snapshot(proto::SnapshotRequest {})).await?;
        let mut header: Option<proto::SnapshotHeader> = None;
        let mut nodes = vec![];
        loop {
            let message = tokio::time::timeout(self.deadlines().call, stream.next()).await;
            let Some(message) = message.map_err(|_| self.late(CALL))? else { break };
            let chunk = message.map_err(|status| self.refused(CALL, status))?;
            header = header.or(chunk.header);
            let expected = header.map_or(0, |header| header.nodes).min(SNAPSHOT_NODES);
            let found = nodes.len() as u64 + chunk.nodes.len() as u64;
            if found > expected {
                return Err(self.incomplete(CALL, expected, found));
            }
            for node in chunk.nodes {
                nodes.push(node.try_into().map_err(|source| self.nonsense(CALL, source))?);
            }
        }
        let found = nodes.len() as u64;
        match header {
            Some(header) if header.nodes == found => {
                let reads = LookupBytes { inner: header.lookup_inner_bytes, leaf: header.lookup_leaf_bytes };
                let partition = header.try_into().map_err(|source| self.nonsense(CALL, source))?;
                Ok(TreeTop { partition, nodes, reads })
            }
            header => Err(self.incomplete(CALL, header.map_or(0, |header| header.nodes), found)),
        }
    }

    async fn locate(&mut self, keys: &[u64]) -> Result<KeyPlaces, ClientError> {
        let mut places = KeyPlaces::with_capacity(keys.len());
        // Several requests are on their way at once, so that the server always has one to work at.
        for group in keys.chunks(LOCATE_KEYS * LOCATE_REQUESTS) {
            let mut asked = Vec::with_capacity(LOCATE_REQUESTS);
            for keys in group.chunks(LOCATE_KEYS) {
                let (client, keys, count) = (self.clone(), keys.to_vec(), keys.len());
                asked.push((count, tokio::spawn(async move { locate_some(&client, keys).await })));
            }
            for (count, answer) in asked {
                // A runtime that ends waits for no answer.
                places.extend(answer.await.unwrap_or_else(|_| Ok(vec![None; count]))?);
            }
        }
        Ok(places)
    }

    async fn query_keys(&mut self, count: u16) -> Result<Option<Vec<Identity>>, ClientError> {
        const CALL: &str = "for keys of queries";
        let request = proto::QueryKeysRequest { count: count.into() };
        let mut stub = stub(self);
        let keys = self.reply(CALL, stub.get_query_keys(request)).await?.keys;
        if keys.is_empty() {
            return Ok(None);
        }
        let wrong = |field, expected, found: usize| {
            self.nonsense(CALL, MessageError::field(field, expected, found as u64))
        };
        if keys.len() != usize::from(count) {
            return Err(wrong("keys", "as many as were asked for", keys.len()));
        }
        let identity = |proto::QueryKey { client, key }| match <[u8; 16]>::try_from(key.as_slice()) {
            Ok(key) => Ok(Identity { client, key: Key::new(key) }),
            Err(_) => Err(wrong("key", "16 bytes", key.len())),
        };
        keys.into_iter().map(identity).collect::<Result<_, _>>().map(Some)
    }
}

async fn locate_some(client: &Client, keys: Vec<u64>) -> Result<KeyPlaces, ClientError> {
    const CALL: &str = "to locate keys";
    let expected = keys.len();
    let reply = client.reply(CALL, stub(client).locate(proto::LocateRequest { keys })).await?;
    if reply.addresses.len() != expected {
        let found = reply.addresses.len() as u64;
        return Err(client.nonsense(CALL, MessageError::field("addresses", "as many as keys", found)));
    }
    let place = |address: u64| (address != 0).then_some(GlobalAddress(address));
    Ok(reply.addresses.into_iter().map(place).collect())
}
