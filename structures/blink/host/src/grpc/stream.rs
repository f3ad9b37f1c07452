//! Transmission of a snapshot to the client that asked for it.

use std::sync::Arc;
use std::time::Duration;

use fatbtree_blink::TreeTop;
use fatbtree_trust::Place;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{convert, proto};

/// Bytes of nodes in one message, about; gRPC's own limit is 4 MB.
const MESSAGE_BYTES: usize = 256 << 10;

/// Bytes of a node in a message beside its children, about; and of each child.
const NODE_BYTES: usize = 32;
const CHILD_BYTES: usize = 16;

/// Sends a snapshot message by message, each made when the one before has been taken. A client that takes
/// none for `stall` gets no more: the snapshot's memory is given back, and so is the place.
pub(super) fn send(
    top: Arc<TreeTop>,
    place: Place,
    stall: Duration,
) -> ReceiverStream<Result<proto::SnapshotChunk, Status>> {
    let (messages, stream) = mpsc::channel(1);
    tokio::spawn(async move {
        let _place = place;
        for message in chunks(&top) {
            match tokio::time::timeout(stall, messages.send(Ok(message))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    tracing::info!(?stall, "snapshot given up: its reader takes nothing");
                    return;
                }
            }
        }
    });
    ReceiverStream::new(stream)
}

fn chunks(top: &TreeTop) -> impl Iterator<Item = proto::SnapshotChunk> {
    let header = convert::header(&top.partition, top.nodes.len() as u64, top.reads);
    let first = proto::SnapshotChunk { header: Some(header), nodes: vec![] };
    let mut rest = top.nodes.iter().peekable();
    let more = std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut nodes = vec![];
        while let Some(node) = rest.next_if(|_| bytes < MESSAGE_BYTES) {
            bytes += NODE_BYTES + CHILD_BYTES * node.children.len();
            nodes.push(node.into());
        }
        (!nodes.is_empty()).then_some(proto::SnapshotChunk { header: None, nodes })
    });
    std::iter::once(first).chain(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode};
    use prost::Message;

    #[test]
    fn messages_are_bounded_however_wide_nodes_are() {
        let partition = Partition { id: 0, range: KeyRange::ALL, root: GlobalAddress(64), root_level: 1 };
        for (count, width) in [(0, 0), (1, 1), (20_000, 16), (5_000, 190)] {
            let children: Vec<_> = (0..width).map(|at| (at, u64::MAX - at)).collect();
            let nodes = (0..count).map(|at| TopNode { address: at, level: 1, children: children.clone() });
            let top = TreeTop { partition, nodes: nodes.collect(), reads: Default::default() };
            let messages: Vec<_> = chunks(&top).collect();
            assert!(messages.iter().all(|message| message.encoded_len() < 300_000));
            let sent: usize = messages.iter().map(|message| message.nodes.len()).sum();
            assert_eq!((sent as u64, messages.len() > 5), (count, count > 1));
        }
    }
}
