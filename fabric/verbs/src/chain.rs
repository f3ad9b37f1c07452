//! Common parts of devices whose network is a function call: valid chains, and the execution of an operation.

use crate::access::Access;
use crate::buffer::Buffer;
use crate::capabilities::Capabilities;
use crate::completion::{Failure, Output};
use crate::device::QueuePair;
use crate::endpoint::Agreed;
use crate::error::PostError;
use crate::memory::Memory;
use crate::request::{Operation, WorkRequest};

/// Whether a device takes a chain on a connected queue pair that has `under_way` requests already.
///
/// # Errors
/// The reason why the chain is refused.
pub(crate) fn check_chain(
    device: &Capabilities,
    agreed: &Agreed,
    queue_pair: QueuePair,
    under_way: usize,
    chain: &[WorkRequest<'_>],
) -> Result<(), PostError> {
    if chain.is_empty() || chain.len() > device.longest_chain {
        return Err(PostError::ChainLength { found: chain.len(), limit: device.longest_chain });
    }
    let found = under_way + chain.len();
    if found > device.send_queue {
        return Err(PostError::Full { queue_pair, what: "requests", found, limit: device.send_queue });
    }
    let limit = device.longest_message;
    let mtu = agreed.mtu.bytes() as u32;
    for request in chain {
        let operation = &request.operation;
        if let Some(address) = operation.atomic_address()
            && !address.is_multiple_of(8)
        {
            return Err(PostError::Misaligned { address });
        }
        match *operation {
            Operation::IndexRead { len, .. } | Operation::Read { len, .. }
                if len > mtu && operation.as_index_read().is_some() =>
            {
                return Err(PostError::IndexReadTooLong { found: len, limit: mtu });
            }
            Operation::Read { len, .. } if u64::from(len) > limit => {
                return Err(PostError::TooLong { found: u64::from(len), limit });
            }
            Operation::Write { data, .. } if data.len() as u64 > limit => {
                return Err(PostError::TooLong { found: data.len() as u64, limit });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Executes an operation. `find` returns memory that permits this access, and the operation's place in it. READs need
/// a buffer.
pub(crate) fn carry_out<'m>(
    operation: &Operation<'_>,
    buffer: Option<Buffer>,
    find: impl Fn(Access) -> Option<(&'m Memory, u64)>,
) -> Result<Output, Failure> {
    match *operation {
        Operation::Read { len, .. } | Operation::IndexRead { len, .. } => {
            let mut buffer = buffer.ok_or(Failure::Other)?;
            buffer.resize(len as usize);
            if len > 0 {
                let (memory, offset) = find(Access::READ).ok_or(Failure::RemoteAccess)?;
                memory.read(offset, buffer.as_mut_slice()).map_err(|_| Failure::RemoteAccess)?;
            }
            Ok(Output::Read(buffer))
        }
        Operation::Write { data, .. } => {
            if !data.is_empty() {
                let (memory, offset) = find(Access::WRITE).ok_or(Failure::RemoteAccess)?;
                memory.write(offset, data).map_err(|_| Failure::RemoteAccess)?;
            }
            Ok(Output::Written)
        }
        _ => {
            let (memory, offset) = find(Access::ATOMIC).ok_or(Failure::RemoteAccess)?;
            let new = |found| operation.apply(found).unwrap_or(found);
            memory.update(offset, new).map(Output::Atomic).map_err(|_| Failure::RemoteAccess)
        }
    }
}
