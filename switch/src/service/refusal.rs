//! Refusal of one update or one read.

use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::{status, v1};

use crate::{ErrorClass, TableError};

/// A canonical code and a text for people. Small, so that results stay cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(super) fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    pub(super) fn into_error(self) -> v1::Error {
        status::error(self.code, self.message)
    }
}

impl From<TableError> for Refusal {
    fn from(error: TableError) -> Self {
        let code = match error.class() {
            ErrorClass::AlreadyExists => Code::AlreadyExists,
            ErrorClass::NotFound => Code::NotFound,
            ErrorClass::ResourceExhausted => Code::ResourceExhausted,
            ErrorClass::InvalidArgument => Code::InvalidArgument,
            ErrorClass::PermissionDenied => Code::PermissionDenied,
            ErrorClass::OutOfRange => Code::OutOfRange,
        };
        Self::new(code, error.to_string())
    }
}
