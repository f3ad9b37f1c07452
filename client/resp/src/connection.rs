//! A connection: frames in, replies out.

use std::io;

use bytes::BytesMut;
use redis_protocol::resp2::decode::decode_bytes_mut;
use redis_protocol::resp2::encode::extend_encode;
use redis_protocol::resp2::types::BytesFrame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::carry_out::Server;
use crate::command::Command;

/// Bytes of the longest command: a value of 1 MiB, and more keys than a program names at once.
const LONGEST: usize = 8 << 20;

/// Commands of a pipeline that are carried out before the replies to them are sent.
const AT_ONCE: usize = 1024;

/// Serves a connection to its end.
pub(crate) async fn serve(
    mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin,
    server: &Server,
) -> io::Result<()> {
    let (mut input, mut output) = (BytesMut::with_capacity(1 << 16), BytesMut::new());
    loop {
        let (commands, mut wrong) = decode(&mut input);
        if commands.is_empty() && wrong.is_none() {
            if input.len() > LONGEST {
                wrong = Some(format!("ERR Protocol error: a command of more than {LONGEST} bytes"));
            } else if stream.read_buf(&mut input).await? == 0 {
                return Ok(());
            } else {
                continue;
            }
        }
        let mut replies = server.carry_out_all(commands).await;
        let is_end = wrong.is_some();
        replies.extend(wrong.map(|why| BytesFrame::Error(why.into())));
        for reply in &replies {
            extend_encode(&mut output, reply, false).map_err(io::Error::other)?;
        }
        stream.write_all(&output).await?;
        output.clear();
        if is_end {
            return Ok(());
        }
    }
}

/// Takes the commands that are there. An error says that nothing after it can be understood.
fn decode(input: &mut BytesMut) -> (Vec<Result<Command, String>>, Option<String>) {
    let mut commands = Vec::new();
    while commands.len() < AT_ONCE && !input.is_empty() {
        match decode_bytes_mut(input) {
            Ok(Some((frame, _, _))) => commands.push(Command::of(frame)),
            Ok(None) => break,
            Err(error) => return (commands, Some(format!("ERR Protocol error: {}", error.details()))),
        }
    }
    (commands, None)
}
