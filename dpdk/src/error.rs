//! Why a device cannot be used.

use std::io;

use crate::ARGUMENTS;

/// Something that DPDK does not do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DpdkError {
    /// The EAL does not start.
    #[error("DPDK does not start with {ARGUMENTS}={arguments:?}: {reason}")]
    Eal {
        /// What it was told.
        arguments: String,
        /// What it says, and what to do.
        reason: String,
    },
    /// A process has one EAL, and it was told something else.
    #[error(
        "DPDK was started with the arguments {started:?} in this process, and cannot be with {arguments:?}"
    )]
    Started {
        /// What it was told.
        started: String,
        /// What it should be told now.
        arguments: String,
    },
    /// There is no such device, or no driver for it.
    #[error(
        "no DPDK device {device:?}: {reason}; expected a virtual one with its arguments, such as net_memif0,role=client, or the PCI \
         address of one that is bound to a DPDK driver (`dpdk-devbind.py --status`)"
    )]
    NoDevice {
        /// What it should be.
        device: String,
        /// What DPDK says.
        reason: String,
    },
    /// A device has one owner.
    #[error("the DPDK device {device} is open already in this process")]
    InUse {
        /// Its name.
        device: String,
    },
    /// The device does not do what every port needs.
    #[error("DPDK device {device}: {step}: {reason}")]
    Device {
        /// Its name.
        device: String,
        /// What was tried.
        step: String,
        /// What DPDK says.
        reason: String,
    },
    /// There is no memory for frames.
    #[error(
        "DPDK device {device}: no memory for {mbufs} frames, {megabytes} MB in all: {reason}; give the EAL more, with huge pages or, with \
         --no-huge, by -m MEGABYTES in {ARGUMENTS}"
    )]
    Memory {
        /// Its name.
        device: String,
        /// Frames that have room at once.
        mbufs: u32,
        /// What they take.
        megabytes: u64,
        /// What DPDK says.
        reason: String,
    },
}

/// What a negative error number means.
pub(crate) fn meaning(error: i32) -> String {
    io::Error::from_raw_os_error(error.saturating_neg()).to_string()
}
