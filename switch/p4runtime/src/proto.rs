//! The generated messages and service, one module per protobuf package.
//!
//! Nothing here is written by hand; the shapes are those of `proto/`.

#![allow(missing_docs, reason = "fields carry the names of the specification")]
#![allow(clippy::all, rustdoc::all, unreachable_pub, rust_2018_idioms, reason = "generated code")]

/// Packages below `google`.
pub mod google {
    /// `google.rpc`: the error model.
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// Packages below `p4`.
pub mod p4 {
    /// `p4.v1`: the P4Runtime service and its entities.
    pub mod v1 {
        tonic::include_proto!("p4.v1");
    }
    /// Packages below `p4.config`.
    pub mod config {
        /// `p4.config.v1`: P4Info.
        pub mod v1 {
            tonic::include_proto!("p4.config.v1");
        }
    }
}

/// The file descriptors of all of the above, encoded.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
