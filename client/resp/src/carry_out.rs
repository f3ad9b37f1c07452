//! Commands by the client library.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use fatbtree::{BytesClient, BytesRange, Error, Scan};
use futures_buffered::join_all;
use redis_protocol::resp2::types::BytesFrame;

use crate::command::{Command, Match, When};
use crate::cursors::Cursors;

/// Cursors of trees that are kept: a key each.
const KEYS_KEPT: usize = 10_000;

/// Cursors of a hash table that are kept: a part of its pairs each.
const SCANS_KEPT: usize = 64;

/// What all connections share.
pub(crate) struct Server {
    db: BytesClient,
    /// Whether keys have an order: scans go on after a key, and find those with a prefix at once.
    is_ordered: bool,
    /// Keys after which scans go on.
    keys: Mutex<Cursors<Bytes>>,
    /// Scans in no order, each until it goes on.
    scans: Mutex<Cursors<Option<Scan<Bytes>>>>,
}

impl Server {
    /// Fails where there are no keys of bytes.
    pub(crate) async fn new(db: BytesClient) -> Result<Self, Error> {
        db.get("").await?;
        let is_ordered = match db.scan(..="").next().await {
            Some(Err(Error::NotInStructure { operation: "scan", .. })) => false,
            Some(Err(error)) => return Err(error),
            Some(Ok(_)) | None => true,
        };
        let (keys, scans) = (Cursors::new(KEYS_KEPT).into(), Cursors::new(SCANS_KEPT).into());
        Ok(Self { db, is_ordered, keys, scans })
    }

    /// Carries out a pipeline, with the result as if one after the other: commands that do not touch each other are carried out at once.
    pub(crate) async fn carry_out_all(&self, commands: Vec<Result<Command, String>>) -> Vec<BytesFrame> {
        let (mut replies, mut commands) =
            (Vec::with_capacity(commands.len()), commands.into_iter().peekable());
        while commands.peek().is_some() {
            let (mut run, mut read, mut changed) = (Vec::new(), HashSet::new(), HashSet::new());
            while let Some(command) = commands.next_if(|command| {
                let Ok(command) = command else { return true };
                let keys = || command.keys().iter();
                let is_apart = match command {
                    Command::Scan { .. } => changed.is_empty(),
                    _ if command.is_change() => {
                        keys().all(|key| !changed.contains(key) && !read.contains(key))
                    }
                    _ => keys().all(|key| !changed.contains(key)),
                };
                if is_apart {
                    let touched = if command.is_change() { &mut changed } else { &mut read };
                    touched.extend(keys().cloned());
                }
                is_apart
            }) {
                run.push(command);
            }
            replies.extend(join_all(run.into_iter().map(|command| self.reply(command))).await);
        }
        replies
    }

    async fn reply(&self, command: Result<Command, String>) -> BytesFrame {
        match command {
            Ok(command) => self.carry_out(command).await.unwrap_or_else(|error| refused(&error)),
            Err(why) => BytesFrame::Error(why.into()),
        }
    }

    async fn carry_out(&self, command: Command) -> Result<BytesFrame, Error> {
        Ok(match command {
            Command::Ping(None) => BytesFrame::SimpleString("PONG".into()),
            Command::Ping(Some(text)) => BytesFrame::BulkString(text),
            Command::Get(key) => bulk(self.db.get(key).await?),
            Command::Set { key, value, when } => {
                let is_set = match when {
                    When::Always => self.db.put(key, value).await.map(|()| true),
                    When::Absent => self.db.insert(key, value).await,
                    When::Present => self.db.update(key, value).await,
                }?;
                if is_set { ok() } else { BytesFrame::Null }
            }
            Command::Delete(keys) => {
                // One after the other: a key may stand there twice.
                let mut deleted = 0;
                for key in keys {
                    deleted += i64::from(self.db.delete(key).await?);
                }
                BytesFrame::Integer(deleted)
            }
            Command::Exists(keys) => {
                let found = join_all(keys.into_iter().map(|key| self.db.get(key))).await;
                let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
                BytesFrame::Integer(found.iter().flatten().count() as i64)
            }
            Command::GetMany(keys) => {
                let found = join_all(keys.into_iter().map(|key| self.db.get(key))).await;
                let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
                BytesFrame::Array(found.into_iter().map(bulk).collect())
            }
            Command::Scan { cursor, keys, count } if self.is_ordered => {
                self.scan(cursor, keys, count).await?
            }
            Command::Scan { cursor, keys, count } => self.scan_all(cursor, &keys, count).await?,
            Command::Info => {
                let stats = self.db.client().stats();
                let version = env!("CARGO_PKG_VERSION");
                let text = format!(
                    "# Server\r\nserver_name:fatbtree-resp\r\nfatbtree_version:{version}\r\n# Stats\r\nreads:{}\r\nchanges:{}\r\nscans:{}\r\n",
                    stats.reads, stats.changes, stats.scans
                );
                BytesFrame::BulkString(text.into())
            }
            Command::Nothing => BytesFrame::Array(Vec::new()),
            Command::Ok => ok(),
        })
    }

    /// The next keys of a scan, and where it goes on; 0 at the end.
    async fn scan(&self, cursor: u64, keys: Match, count: usize) -> Result<BytesFrame, Error> {
        let mut range = match keys {
            Match::Prefix(prefix) => BytesRange::prefix(&prefix),
            Match::Key(key) => BytesRange::of(key.clone()..=key),
        };
        if cursor != 0 {
            let Some(last) = locked(&self.keys).get(cursor).cloned() else { return Ok(no_cursor()) };
            range = range.after(&last, fatbtree::Order::Forward);
        }
        let (mut pairs, mut found) = (self.db.scan_range(range, false), Vec::new());
        while found.len() < count
            && let Some(pair) = pairs.next().await
        {
            found.push(pair?.0);
        }
        let next = match found.last() {
            Some(last) if found.len() == count => {
                // Of its own: a part of the memory of many pairs would keep all of that.
                let last = Bytes::copy_from_slice(last);
                locked(&self.keys).put(last)
            }
            _ => 0,
        };
        Ok(scanned(next, found))
    }

    /// The same in no order, as Redis does it: `count` keys are looked at, and those are given that match. A cursor is taken once.
    async fn scan_all(&self, cursor: u64, keys: &Match, count: usize) -> Result<BytesFrame, Error> {
        let mut pairs = match cursor {
            0 => self.db.pairs(),
            _ => match locked(&self.scans).get(cursor).and_then(Option::take) {
                Some(pairs) => pairs,
                None => return Ok(no_cursor()),
            },
        };
        let mut found = Vec::new();
        for _ in 0..count {
            let Some(pair) = pairs.next().await else { return Ok(scanned(0, found)) };
            let (key, _) = pair?;
            let is_meant = match keys {
                Match::Prefix(prefix) => key.starts_with(prefix),
                Match::Key(one) => key == *one,
            };
            if is_meant {
                found.push(key);
            }
        }
        let next = locked(&self.scans).put(Some(pairs));
        Ok(scanned(next, found))
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_cursor() -> BytesFrame {
    BytesFrame::Error("ERR this cursor is kept no more: begin the scan again".into())
}

fn scanned(next: u64, found: Vec<Bytes>) -> BytesFrame {
    let found = found.into_iter().map(BytesFrame::BulkString).collect();
    BytesFrame::Array(vec![BytesFrame::BulkString(next.to_string().into()), BytesFrame::Array(found)])
}

fn ok() -> BytesFrame {
    BytesFrame::SimpleString("OK".into())
}

fn bulk(value: Option<Bytes>) -> BytesFrame {
    value.map_or(BytesFrame::Null, BytesFrame::BulkString)
}

/// An error of the library as an error of Redis, in one line.
fn refused(error: &Error) -> BytesFrame {
    let first: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(first), |error| error.source()).map(ToString::to_string);
    let text = causes.collect::<Vec<_>>().join(": ").replace(['\r', '\n'], " ");
    BytesFrame::Error(format!("ERR {text}").into())
}
