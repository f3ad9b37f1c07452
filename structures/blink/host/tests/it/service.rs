//! The services of a tree over loopback: a data-path thread with a mailbox on one side, gRPC clients on the other.
use crate::common;

use common::lab::options;
use common::service::Service;
use fatbtree_blink::{LookupBytes, TopNode, Tree, TreeConfig, TreeTop, ValueLayout};
use fatbtree_blink_host::grpc::{TreeCalls, TreeServiceOptions};
use fatbtree_blink_host::{LoadOptions, LoadedTree, TreeInfo};

fn tree(keys: u64) -> LoadedTree {
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    let load = LoadOptions { spare_bytes: 3 * 4096, ..LoadOptions::new(config, 4) };
    common::load(&load, &(0..keys).collect::<Vec<_>>())
}

/// The top of a tree that stands still.
fn top(tree: &LoadedTree) -> TreeTop {
    let memory = common::memory(tree);
    let mut nodes = vec![];
    Tree::new(&memory, &tree.config, &tree.partition)
        .for_each_internal(|node| {
            nodes.push(TopNode {
                address: node.header().address.raw(),
                level: node.header().level,
                children: node.children().map(|(pivot, child)| (pivot, child.raw())).collect(),
            });
        })
        .unwrap();
    TreeTop { partition: tree.partition, nodes, reads: LookupBytes::of(&tree.config) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trip_over_loopback() {
    let tree = tree(500_000);
    let expected = top(&tree);
    assert!(expected.nodes.len() > 1200, "several messages");
    let (partition, counts, config) = (tree.partition, tree.counts, tree.config);
    let service = Service::start(tree, options(), TreeServiceOptions::default()).await;
    let mut client = service.client().await;

    let info = client.info::<TreeInfo>().await.unwrap();
    assert_eq!((info.partition, info.counts, info.config), (partition, counts, config));
    assert_eq!(service.handle.info().await.unwrap(), info, "nothing is lost on the wire");
    assert_eq!(fatbtree_blink_host::grpc::super_root([&info]).unwrap().partitions(), [partition]);

    assert_eq!(client.snapshot().await.unwrap(), expected);
}
