//! Many clients of one host, which share an entry of the cluster file.

use fatbtree::{Client, Error, Options, Protocol};

use crate::common::Running;

const SEATS: u16 = 48;

async fn connect(options: Options, count: u16) -> Vec<Client> {
    let tasks: Vec<_> = (0..count).map(|_| tokio::spawn(options.clone().connect())).collect();
    let mut clients = Vec::new();
    for task in tasks {
        clients.push(task.await.unwrap().unwrap());
    }
    clients
}

#[tokio::test]
async fn clients_of_one_process_share_an_entry_and_the_last_seat_says_so() {
    let cluster = Running::with_seats(SEATS);
    let mut clients = connect(cluster.options(), SEATS).await;
    // Each has queue pairs and an address of its own: all work at once. Few write: each writer holds memory of the server for itself.
    let tasks = clients.iter().zip(0u64..).map(|(client, n)| {
        let (client, writes) = (client.clone(), n < 8);
        tokio::spawn(async move {
            for key in (0..20).map(|key| key * u64::from(SEATS) + n) {
                if writes {
                    client.put(key, key.to_le_bytes()).await.unwrap();
                }
                let expected = writes.then(|| key.to_le_bytes().to_vec());
                assert_eq!(client.get(key).await.unwrap().map(Vec::from), expected);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }

    let error = cluster.options().connect().await.unwrap_err();
    let Error::Connect { source, .. } = &error else { panic!("{error}") };
    let message = source.to_string();
    assert!(
        message.contains("all 48 UDP ports of host-0-1") && message.contains("longer range"),
        "{message}"
    );
    // A client that ends leaves its seat to the next one.
    clients.pop().unwrap().close().await;
    clients.push(cluster.client().await);
    for client in clients {
        client.close().await;
    }
}

#[tokio::test]
async fn queries_have_seats_too() {
    let cluster = Running::with_seats(4);
    let clients = connect(cluster.options().protocol(Protocol::Query), 4).await;
    for (client, key) in clients.iter().zip(0..) {
        client.put(key, b"x").await.unwrap();
    }
    assert_eq!(clients[3].get_many(0..4).await.unwrap().iter().flatten().count(), 4);
}
