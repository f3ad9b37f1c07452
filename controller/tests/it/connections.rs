//! A controller has as many connections as it may; a peer with a connection is served, and a peer that comes
//! too late finds its connection closed.

use std::future::pending;
use std::time::Duration;

use fatbtree_controller::grpc::{Client, Input, ServiceOptions, serve};
use fatbtree_controller::operator::Question;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn connections_are_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let (inputs, mut coming) = mpsc::channel(4);
    let options = ServiceOptions { connections: 3, connections_per_host: 3, ..ServiceOptions::default() };
    tokio::spawn(serve(options, listener, inputs, watch::channel(Ok(())).1, pending()));
    tokio::spawn(async move {
        while let Some(input) = coming.recv().await {
            if let Input::Asked { reply, .. } = input {
                let _ = reply.send(Ok("7".to_owned()));
            }
        }
    });
    let mut client = Client::connect(address.as_str(), PATIENCE).await.expect("there is room");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(TcpStream::connect(&address).await.expect("the server listens"));
    }
    // The last of them: at its end, not at the server's first bytes.
    let last = held.last_mut().expect("three");
    let end = tokio::time::timeout(PATIENCE, last.read_to_end(&mut Vec::new())).await.expect("it is closed");
    assert!(end.is_err() || end.is_ok_and(|bytes| bytes == 0), "before a word was said");
    let answer: u64 = client.ask(&Question::Status, PATIENCE).await.expect("it has its connection");
    assert_eq!(answer, 7);
}
