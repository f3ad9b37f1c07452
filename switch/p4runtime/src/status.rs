//! Errors of single updates inside a gRPC status (P4Runtime specification, "Error Reporting Messages").
//!
//! A server puts a `google.rpc.Status` into the trailer `grpc-status-details-bin`, with one `p4.v1.Error` for every
//! element of the batch, in order, the successful ones included.

use prost::Message as _;
use prost::bytes::Bytes;
use prost_types::Any;
use tonic::{Code, Status};

use crate::proto::google::rpc;
use crate::v1;

/// Type URL of `p4.v1.Error` inside an `Any`.
pub const ERROR_TYPE_URL: &str = "type.googleapis.com/p4.v1.Error";

/// The outcome of one element of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateError {
    /// Place in the batch, from 0.
    pub index: usize,
    /// Canonical gRPC code.
    pub code: Code,
    /// The server's message.
    pub message: String,
}

impl std::fmt::Display for UpdateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "update {}: {:?}: {}", self.index, self.code, self.message)
    }
}

/// Makes the status of a batch of which some elements failed. `errors` has one element per element of the batch;
/// `what` is "Write" or "Read".
pub fn batch_status(what: &str, errors: &[v1::Error]) -> Status {
    let failed = errors.iter().filter(|error| error.canonical_code != 0).count();
    let mut message = format!("{what}: {failed} of {} failed", errors.len());
    if let Some((index, first)) = errors.iter().enumerate().find(|(_, error)| error.canonical_code != 0) {
        message.push_str(&format!("; number {index}: {}", first.message));
    }
    let details = errors
        .iter()
        .map(|error| Any { type_url: ERROR_TYPE_URL.to_owned(), value: error.encode_to_vec() })
        .collect();
    let status = rpc::Status { code: Code::Unknown.into(), message: message.clone(), details };
    Status::with_details(Code::Unknown, message, Bytes::from(status.encode_to_vec()))
}

/// Reads the elements that failed out of a status. `None` when the status has no such details: then the whole batch
/// was refused, for the reason the status itself gives.
pub fn batch_errors(status: &Status) -> Option<Vec<UpdateError>> {
    let details = rpc::Status::decode(status.details()).ok()?.details;
    let mut failed = Vec::new();
    for (index, any) in details.iter().enumerate() {
        if !any.type_url.ends_with("/p4.v1.Error") {
            return None;
        }
        let error = v1::Error::decode(any.value.as_slice()).ok()?;
        if error.canonical_code != 0 {
            let code = Code::from_i32(error.canonical_code);
            failed.push(UpdateError { index, code, message: error.message });
        }
    }
    (!failed.is_empty()).then_some(failed)
}

/// A `p4.v1.Error`.
pub fn error(code: Code, message: impl Into<String>) -> v1::Error {
    v1::Error { canonical_code: code.into(), message: message.into(), ..v1::Error::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_the_trailer() {
        let status = batch_status(
            "Write",
            &[
                v1::Error::default(),
                error(Code::AlreadyExists, "there already"),
                v1::Error::default(),
                error(Code::NotFound, "not there"),
            ],
        );
        assert_eq!(status.code(), Code::Unknown);
        assert!(status.message().contains("2 of 4") && status.message().contains("number 1: there already"));
        let errors = batch_errors(&status).expect("details");
        assert_eq!(
            errors.iter().map(|error| (error.index, error.code)).collect::<Vec<_>>(),
            [(1, Code::AlreadyExists), (3, Code::NotFound)]
        );
        assert_eq!(batch_errors(&Status::permission_denied("not primary")), None);
    }
}
