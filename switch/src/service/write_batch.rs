//! A batch of updates, applied part by part ("Batch Atomicity").

use fatbtree_p4runtime::status::batch_status;
use fatbtree_p4runtime::tonic::{Code, Status};
use fatbtree_p4runtime::v1::{self, write_request::Atomicity};

use super::config::Loaded;
use super::refusal::Refusal;
use super::write::{Scratch, Undo, Writer};
use crate::Pipeline;

/// A write that is under way.
#[derive(Debug)]
pub(super) struct Write {
    request: v1::WriteRequest,
    atomicity: Atomicity,
    /// Updates that were applied or refused.
    done: usize,
    /// Errors by update, filled from the first error on: a batch that succeeds allocates nothing here.
    errors: Vec<v1::Error>,
    /// Changes that take back what was done, where all or nothing is wanted.
    undo: Option<Vec<Undo>>,
}

impl Write {
    pub(super) fn new(request: v1::WriteRequest) -> Result<Self, Status> {
        let atomicity = Atomicity::try_from(request.atomicity).map_err(|_| {
            Status::invalid_argument(format!("expected an atomicity of 0 to 2, found {}", request.atomicity))
        })?;
        let undo = (atomicity != Atomicity::ContinueOnError).then(Vec::new);
        Ok(Self { request, atomicity, done: 0, errors: Vec::new(), undo })
    }

    /// Whether packets may be forwarded when a part of it is done.
    pub(super) fn may_pause(&self) -> bool {
        self.atomicity != Atomicity::DataplaneAtomic
    }

    /// The request, whose memory takes long to give back if it was large.
    pub(super) fn into_request(self) -> v1::WriteRequest {
        self.request
    }

    /// Applies up to `most` further updates. Returns the answer after the last, or after the first that fails if the batch is all or
    /// nothing.
    pub(super) fn go_on(
        &mut self,
        loaded: &mut Loaded,
        pipeline: &mut Pipeline,
        scratch: &mut Scratch,
        most: usize,
    ) -> Option<Result<v1::WriteResponse, Status>> {
        let Self { request, done, errors, undo, .. } = self;
        let all_or_none = undo.is_some();
        let mut writer = Writer { loaded, pipeline, scratch, undo: undo.take() };
        let count = request.updates.len();
        let part = request.updates[*done..].iter().take(most);
        for update in part {
            match writer.apply(update) {
                Ok(()) if errors.is_empty() => {}
                Ok(()) => errors.push(v1::Error::default()),
                Err(refusal) => {
                    errors.resize_with(*done, v1::Error::default);
                    errors.push(refusal.into_error());
                    if all_or_none {
                        writer.roll_back();
                        return Some(Err(self.all_failed()));
                    }
                }
            }
            *done += 1;
        }
        *undo = writer.undo.take();
        if *done < count {
            return None;
        }
        Some(if errors.is_empty() { Ok(v1::WriteResponse {}) } else { Err(batch_status("Write", errors)) })
    }

    /// Status of a batch that was taken back. Every update gets its own outcome: the others did not fail, but are not active either.
    fn all_failed(&mut self) -> Status {
        let culprit = self.errors.len() - 1;
        let aborted = || {
            let message = format!("taken back, because update {culprit} of the batch failed");
            Refusal::new(Code::Aborted, message).into_error()
        };
        self.errors[..culprit].fill_with(aborted);
        self.errors.resize_with(self.request.updates.len(), aborted);
        batch_status("Write", &self.errors)
    }
}
