//! Questions of memory servers of one structure to each other: see `fellows` at the root of this crate.

use std::time::Duration;

use fatbtree_trust::Door;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{MessageError, missing};
use super::proto::fellow_answer::What;
use super::{Client, ClientError, Describe, answer_within, proto};
use crate::fellows::{Answer, Ask, Question, Unanswered};
use crate::mailbox::Handle;
use crate::marked::Marked;
use crate::tenant::Tenant;

/// Longest time for an answer: the server walks over its part first.
pub const WALK: Duration = Duration::from_secs(240);

/// Bytes of the largest message of an answer.
const MESSAGE_BYTES: usize = 64 << 10;

/// Bytes of a region for which a bit may stand.
const UNITS: std::ops::RangeInclusive<u64> = 64..=4096;

/// Pieces of an answer that wait for the network.
const PIECES: usize = 4;

/// What is asked, as an error tells it.
const CALL: &str = "what its part of the structure leads to";

impl From<Ask> for proto::FellowAsk {
    fn from(ask: Ask) -> Self {
        use proto::fellow_ask::Question as Asked;
        let Ask { by, of, members, question, sweep: _ } = ask;
        let question = match question {
            Question::Marks { bytes } => Asked::Marks(bytes),
            Question::IsQuiet(quiet) => Asked::IsQuiet(quiet),
        };
        Self { by: by.into(), of: of.into(), members, question: Some(question) }
    }
}

/// The number of the sweep stays with the server that asks.
impl TryFrom<proto::FellowAsk> for Ask {
    type Error = MessageError;

    fn try_from(ask: proto::FellowAsk) -> Result<Self, MessageError> {
        use proto::fellow_ask::Question as Asked;
        let proto::FellowAsk { by, of, members, question } = ask;
        let question = match question.ok_or_else(|| missing("question"))? {
            Asked::Marks(bytes) => Question::Marks { bytes },
            Asked::IsQuiet(quiet) => Question::IsQuiet(quiet),
        };
        let (by, of) = (MessageError::bits_16("by", by)?, MessageError::bits_16("of", of)?);
        Ok(Self { sweep: 0, by, of, members, question })
    }
}

impl From<Unanswered> for Status {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Region { .. } => Self::invalid_argument(why.to_string()),
            Unanswered::Disk => Self::internal(why.to_string()),
            _ => Self::failed_precondition(why.to_string()),
        }
    }
}

/// The service.
pub(super) struct Service<T: Tenant> {
    pub(super) handle: Handle<T>,
    pub(super) door: Door<()>,
}

type Pieces = Result<proto::FellowAnswer, Status>;

#[tonic::async_trait]
impl<T> proto::fellow_server::Fellow for Service<T>
where
    T: Tenant<Description: Describe + Send + Sync, Request: Send> + Send + 'static,
{
    type AskStream = ReceiverStream<Pieces>;

    async fn ask(&self, request: Request<proto::FellowAsk>) -> Result<Response<Self::AskStream>, Status> {
        let caller = self.door.caller(&request);
        let ask = Ask::try_from(request.into_inner())?;
        self.door.admit_server(&caller, ask.by)?;
        let answer = answer_within(WALK, self.handle.asked(ask)).await??;
        let (pieces, stream) = mpsc::channel(PIECES);
        // The asking server may go away meanwhile.
        tokio::spawn(async move { send(answer, &pieces).await });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Sends an answer in pieces. `None` if it is not taken any more.
async fn send(answer: Answer, pieces: &mpsc::Sender<Pieces>) -> Option<()> {
    let send = async |what| pieces.send(Ok(proto::FellowAnswer { what: Some(what) })).await.ok();
    if let Answer::Marks { quiet, marks } = answer {
        let unit = u32::try_from(marks.unit()).unwrap_or(0);
        send(What::Begin(proto::MarksBegin { quiet, unit })).await?;
        for (first, words) in marks.windows() {
            let words = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            send(What::Piece(proto::MarksPiece { first, words })).await?;
        }
    }
    send(What::Done(proto::FellowDone {})).await
}

/// Asks a memory server for another one of its structure. A broken answer is none: the marks of a part are whole, or there are none.
///
/// # Errors
/// See [`ClientError`].
pub async fn ask(client: &Client, ask: Ask) -> Result<Answer, ClientError> {
    let mut stub =
        proto::fellow_client::FellowClient::new(client.channel()).max_decoding_message_size(MESSAGE_BYTES);
    let request = proto::FellowAsk::from(ask);
    let mut stream = client.reply(CALL, stub.ask(request)).await?;
    let answer = async {
        match ask.question {
            Question::Marks { bytes } => marks(client, &mut stream, bytes).await,
            Question::IsQuiet(_) => match next(client, &mut stream).await? {
                What::Done(_) => Ok(Answer::Quiet),
                What::Begin(_) | What::Piece(_) => Err(client.nonsense(CALL, missing("done"))),
            },
        }
    };
    tokio::time::timeout(client.deadlines().call, answer).await.unwrap_or_else(|_| Err(client.late(CALL)))
}

async fn next(client: &Client, stream: &mut Streaming<proto::FellowAnswer>) -> Result<What, ClientError> {
    let message = stream.message().await.map_err(|status| client.refused(CALL, status))?;
    message.and_then(|message| message.what).ok_or_else(|| client.nonsense(CALL, missing("done")))
}

/// Reads marks of a region. Their memory is bounded by the region, whatever comes.
async fn marks(
    client: &Client,
    stream: &mut Streaming<proto::FellowAnswer>,
    bytes: u64,
) -> Result<Answer, ClientError> {
    let nonsense = |error| client.nonsense(CALL, error);
    let What::Begin(proto::MarksBegin { quiet, unit }) = next(client, stream).await? else {
        return Err(nonsense(missing("begin")));
    };
    let unit = u64::from(unit);
    if !UNITS.contains(&unit) {
        return Err(nonsense(MessageError::field("unit", "64 to 4096", unit)));
    }
    let (mut marks, mut from) = (Marked::none(bytes, unit), 0);
    loop {
        match next(client, stream).await? {
            What::Done(_) => return Ok(Answer::Marks { quiet, marks }),
            What::Begin(_) => return Err(nonsense(missing("piece"))),
            What::Piece(proto::MarksPiece { first, words }) => {
                let (whole, rest) = words.as_chunks::<8>();
                let is_next = first >= from && !whole.is_empty() && rest.is_empty();
                let added =
                    is_next && marks.add_window(first, whole.iter().map(|word| u64::from_le_bytes(*word)));
                if !added {
                    return Err(nonsense(MessageError::field(
                        "first",
                        "ascending words of the region",
                        first,
                    )));
                }
                from = first + whole.len() as u64;
            }
        }
    }
}
