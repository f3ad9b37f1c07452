//! `fatbtree-resp`: trees or a hash table of byte keys for programs that speak the Redis protocol (RESP2).
//!
//! An example of the client library: all it knows of the cluster is [`fatbtree::BytesClient`].
//!
//! ```text
//!  redis-cli, any library ──TCP──► connection: frames ► commands ► runs of commands that do not touch each other ──► BytesClient ──► cluster
//!                         ◄──────── replies, in order ◄──────────────────────────────────────────────────────────◄──┘
//! ```
//!
//! ```text
//! fatbtree load --cluster cluster.toml --keys names.csv --key-type bytes
//! fatbtree-resp --cluster cluster.toml --listen 127.0.0.1:6379
//! redis-cli set user:4711 Ada
//! redis-cli --scan --pattern 'user:*'
//! ```
//!
//! GET, SET with NX or XX, DEL, EXISTS, MGET, SCAN with MATCH `prefix*`, PING and INFO. A scan of trees reads the keys with the prefix alone, in
//! their order; one of a hash table looks at all keys, in no order, as Redis does. A pipeline is carried out many commands at a time: as if
//! one after the other, because commands on one key wait for each other where one of them changes it. Each command is atomic on one key; MGET
//! and DEL of several keys are one operation for each. What Redis has beyond that (expiry, types, transactions, databases) is refused with an
//! error.

mod carry_out;
mod command;
mod connection;
mod cursors;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Parser;
use tokio::net::TcpListener;

use carry_out::Server;

/// Trees or a hash table of byte keys for programs that speak the Redis protocol.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  fatbtree-resp --cluster cluster.toml
  fatbtree-resp --cluster cluster.toml --listen 127.0.0.1:7000 --client host-0-1

Its clients need no password: each program that reaches the address reads and writes the tree. Ctrl-C ends it."
)]
struct Arguments {
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Client of the file; by default the first.
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Address for programs that speak the Redis protocol.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "the program that started this one waits for the line")]
async fn main() -> Result<()> {
    let Arguments { cluster, client, listen } = Arguments::parse();
    let mut options = fatbtree::Options::new(cluster);
    if let Some(name) = &client {
        options = options.client(name);
    }
    let listener = TcpListener::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
    let client = options.connect().await?;
    // Fails here where keys are numbers, and not with the first command.
    let server = Arc::new(Server::new(client.bytes()).await?);
    println!("ready on {}", listener.local_addr()?);
    let accepting = async {
        loop {
            let (stream, _) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => return error,
            };
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                // A peer that has gone is no error of this server.
                let _ = connection::serve(stream, &server).await;
            });
        }
    };
    tokio::select! {
        error = accepting => Err(error).context("accepting connections"),
        signal = tokio::signal::ctrl_c() => {
            client.close().await;
            Ok(signal?)
        }
    }
}
