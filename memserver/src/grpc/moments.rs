//! Comparison of the moments of all servers, by a client.

use std::collections::BTreeMap;

use fatbtree_remote_memory::session_keeper::Denied;

use super::convert::{MessageError, missing};
use super::{Client, ClientError, proto};
use crate::moments::{Heard, Moment, OlderCopy, Statement};
use crate::refusal::Refusal;

/// Moments in a message, at most.
const MOST: usize = 1024;

impl From<Statement> for proto::Statement {
    fn from(statement: Statement) -> Self {
        let Statement { server, generation, moments } = statement;
        let moments = moments.into_iter().map(|moment| moment.0).collect();
        Self { server: server.into(), generation, moments }
    }
}

impl TryFrom<proto::Statement> for Statement {
    type Error = MessageError;

    fn try_from(statement: proto::Statement) -> Result<Self, MessageError> {
        let proto::Statement { server, generation, moments } = statement;
        if moments.is_empty() || moments.len() > MOST {
            return Err(MessageError::field("moments", "1 to 1024", moments.len() as u64));
        }
        let moments = moments.into_iter().map(Moment).collect();
        Ok(Self { server: MessageError::bits_16("server", server)?, generation, moments })
    }
}

/// What a server has heard of the server of a number; `by` is put in by the client that passes it on.
impl From<(u16, Heard)> for proto::Heard {
    fn from((of, heard): (u16, Heard)) -> Self {
        let Heard { generation, moment, past } = heard;
        Self { by: 0, of: of.into(), generation, moment: moment.0, past }
    }
}

/// The server that has heard it, and what.
impl TryFrom<proto::Heard> for (u16, Heard) {
    type Error = MessageError;

    fn try_from(heard: proto::Heard) -> Result<Self, MessageError> {
        let proto::Heard { by, generation, moment, past, .. } = heard;
        let by = MessageError::bits_16("by", by)?;
        Ok((by, Heard { generation, moment: Moment(moment), past }))
    }
}

/// Answer of a server to a comparison.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What the server says of itself.
    pub own: Statement,
    /// What it has heard of others, by number.
    pub heard: BTreeMap<u16, Heard>,
}

impl TryFrom<proto::CompareReply> for Compared {
    type Error = MessageError;

    fn try_from(reply: proto::CompareReply) -> Result<Self, MessageError> {
        let own = reply.own.ok_or_else(|| missing("own"))?.try_into()?;
        let heard = reply.heard.into_iter().map(|heard| {
            let of = MessageError::bits_16("of", heard.of)?;
            let (_, heard) = heard.try_into()?;
            Ok((of, heard))
        });
        Ok(Self { own, heard: heard.collect::<Result<_, MessageError>>()? })
    }
}

/// Reasons for which servers cannot be used together.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// One of them was restored from an older copy.
    #[error(transparent)]
    Older(#[from] OlderCopy),
    /// One of them does not answer, or refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl From<CompareError> for Denied {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Older(older) => Refusal::from(older).into(),
            CompareError::Client(error) => error.into(),
        }
    }
}

/// What servers have said of themselves, and heard of others, by number.
pub type Answers = BTreeMap<u16, (Client, Compared)>;

/// Carries moments between servers that have answered, so that each has heard of all others when this returns. A server whose folder is an
/// older copy is told.
///
/// # Errors
/// When there is such a server; or when one does not answer, or cannot write down what it hears.
pub async fn exchange(answers: &mut Answers) -> Result<(), CompareError> {
    let mut found = None;
    for (by, (_, Compared { heard, .. })) in &*answers {
        let known = heard.iter().filter_map(|(of, heard)| Some((heard, &answers.get(of)?.1.own)));
        for (heard, own) in known {
            if let Err(older) = own.agrees(*by, heard) {
                found = Some((older, heard.clone()));
            }
        }
    }
    if let Some((older, heard)) = found {
        if let Some((client, _)) = answers.get_mut(&older.server) {
            let heard = proto::Heard { by: older.by.into(), ..(older.server, heard).into() };
            // It refuses, whether it answers or not: this client uses none of them.
            let _refused = client.compare(Vec::new(), vec![heard]).await;
        }
        return Err(older.into());
    }
    let statements: Vec<Statement> = answers.values().map(|(_, compared)| compared.own.clone()).collect();
    for (number, (client, compared)) in answers {
        let is_news = |said: &&Statement| {
            let heard = compared.heard.get(&said.server);
            let is_known =
                |heard: &Heard| heard.generation == said.generation && heard.moment == said.present();
            said.server != *number && !heard.is_some_and(is_known)
        };
        let news: Vec<Statement> = statements.iter().filter(is_news).cloned().collect();
        // Few at a time: a server reads messages of 16 KiB.
        for some in news.chunks(4) {
            let others = some.iter().cloned().map(proto::Statement::from).collect();
            *compared = client.compare(others, Vec::new()).await?;
        }
    }
    Ok(())
}
