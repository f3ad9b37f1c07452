//! P4Runtime over real gRPC on loopback, against the switch with `testdata/service.p4` loaded.

mod arbitration;
mod batches;
mod bounds;
mod errors;
mod harness;
mod multicast;
mod packets;
mod parts;
mod pipeline;
mod reads;
mod symmetry;
