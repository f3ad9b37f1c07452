//! Errors of the EAL and of devices.

use std::io;

use crate::ARGUMENTS;

/// Error of the EAL or of a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DpdkError {
    /// The EAL does not start.
    #[error("DPDK does not start with {ARGUMENTS}={arguments:?}: {reason}")]
    Eal {
        /// Arguments of the EAL.
        arguments: String,
        /// Messages of the EAL, and advice.
        reason: String,
    },
    /// The EAL of this process was started with other arguments.
    #[error(
        "DPDK was started with the arguments {started:?} in this process, and cannot be with {arguments:?}"
    )]
    Started {
        /// Arguments of the first start.
        started: String,
        /// Arguments of this start.
        arguments: String,
    },
    /// There is no such device, or no driver for it.
    #[error(
        "no DPDK device {device:?}: {reason}; expected a virtual one with its arguments, such as net_memif0,role=client, or the PCI \
         address of one that is bound to a DPDK driver (`dpdk-devbind.py --status`)"
    )]
    NoDevice {
        /// Device that was requested.
        device: String,
        /// Reason that DPDK gives.
        reason: String,
    },
    /// The device is open already: it can have one owner.
    #[error("the DPDK device {device} is open already in this process")]
    InUse {
        /// Name of the device.
        device: String,
    },
    /// The device does not support what every port needs.
    #[error("DPDK device {device}: {step}: {reason}")]
    Device {
        /// Name of the device.
        device: String,
        /// Step that failed.
        step: String,
        /// Reason that DPDK gives.
        reason: String,
    },
    /// There is no memory for frames.
    #[error(
        "DPDK device {device}: no memory for {mbufs} frames, {megabytes} MB in all: {reason}; give the EAL more, with huge pages or, with \
         --no-huge, by -m MEGABYTES in {ARGUMENTS}"
    )]
    Memory {
        /// Name of the device.
        device: String,
        /// Number of frames that need room at once.
        mbufs: u32,
        /// Size of their memory in megabytes.
        megabytes: u64,
        /// Reason that DPDK gives.
        reason: String,
    },
}

/// Text of a negative error number.
pub(crate) fn meaning(error: i32) -> String {
    io::Error::from_raw_os_error(error.saturating_neg()).to_string()
}
