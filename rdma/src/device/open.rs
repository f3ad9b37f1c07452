//! Opens devices: determines their capabilities and the addresses of their port.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use fatbtree_verbs::{BufferPool, Capabilities, Mtu};

use super::{Port, RdmaDevice, down_to_power_of_two};
use crate::config::Config;
use crate::error::OpenError;
use crate::ffi::{self, Limits};
use crate::host::Host;
use crate::sys::{self, Channel, CompletionQueue, Context, MemoryRegion, ProtectionDomain, RawQueuePair};
use crate::table::Table;

impl RdmaDevice {
    /// Names of the RDMA devices of this machine.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn names() -> io::Result<Vec<String>> {
        sys::device_names()
    }

    /// Opens the device of that name and registers its buffers.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str, config: &Config) -> Result<Self, OpenError> {
        let refused = |what, advice| {
            let name = name.to_owned();
            move |reason| OpenError::Driver { name, what, reason, advice }
        };
        config.check().map_err(|(field, expected, found)| OpenError::Config { field, expected, found })?;
        let found = Self::names().map_err(refused("list devices", ""))?;
        if !found.iter().any(|found| found == name) {
            return Err(OpenError::NoDevice { name: name.to_owned(), found });
        }
        let advice = "; may this user read and write /dev/infiniband/uverbs*?";
        let context = std::sync::Arc::new(Context::open(name).map_err(refused("open it", advice))?);
        let limits = context.limits(config.port).map_err(refused("ask what it can do", ""))?;
        check_port(name, config, &limits)?;
        let host = Host::new(name);
        let port = port(name, config, &limits, &context, &host)?;

        let domain = ProtectionDomain::new(&context).map_err(refused("make a protection domain", ""))?;
        let send_queue = u32::from(config.send_queue).min(limits.work_requests).max(1);
        let queue_pairs = config.queue_pairs.min(limits.queue_pairs).max(1);
        // Nothing is posted for whose completion there would be no room.
        let room = u64::from(queue_pairs).saturating_mul(send_queue.into()).min(limits.completions.into());
        let channel = Channel::new(&context).map_err(refused("make a channel for completions", ""))?;
        let sends =
            CompletionQueue::new(&channel, room as u32).map_err(refused("make a completion queue", ""))?;
        let watching = queue_pairs.min(limits.completions);
        let watching =
            CompletionQueue::new(&channel, watching).map_err(refused("make a completion queue", ""))?;
        let queues = [sends, watching];

        let buffers = BufferPool::new(&config.buffers).map_err(refused("map buffers", ""))?;
        let advice = "; raise the limit of locked memory (ulimit -l unlimited), or make a smaller pool";
        let buffer_region =
            MemoryRegion::buffers(&domain, &buffers).map_err(refused("register its buffers", advice))?;

        let inline = |bytes: u32| RawQueuePair::new(&domain, &queues, 0, send_queue, bytes);
        let inline_bytes = most_inline(config.inline_bytes, |bytes| inline(bytes).map(drop))
            .map_err(refused("make a queue pair", ""))?;

        let capabilities = Capabilities {
            // Only vendors' own extensions of libibverbs post masked atomics.
            masked_atomics: false,
            device_memory: limits.device_memory,
            line_atomicity: config.line_atomicity.unwrap_or_else(|| host.keeps_lines_whole()),
            longest_chain: ffi::LONGEST_CHAIN.min(send_queue as usize),
            inline_bytes: inline_bytes as usize,
            send_queue: send_queue as usize,
            responder_reads: port.endpoint_reads.0,
            initiator_reads: port.endpoint_reads.1,
            longest_message: buffers.largest().min(limits.message.into()),
        };
        Ok(Self {
            name: name.to_owned(),
            config: Config { queue_pairs, ..config.clone() },
            port,
            capabilities,
            atomics: limits.atomics != 0,
            room: room as usize,
            pairs: Table::new(),
            under_way: 0,
            completions: VecDeque::new(),
            broken: VecDeque::new(),
            regions: BTreeMap::new(),
            buffer_region,
            buffers,
            queues,
            channel,
            domain,
            context,
        })
    }
}

fn check_port(name: &str, config: &Config, limits: &Limits) -> Result<(), OpenError> {
    let wrong = |expected, found, advice| {
        Err(OpenError::Port { name: name.to_owned(), port: config.port, expected, found, advice })
    };
    if limits.ethernet == 0 {
        let advice = "switches of this system read Ethernet only: name another device or port";
        return wrong("an Ethernet port", "one of another kind".to_owned(), advice);
    }
    if limits.active == 0 {
        let found = match limits.port_state {
            1 => "it down".to_owned(),
            other => format!("it in state {other} of verbs.h"),
        };
        return wrong("an active port", found, "bring its network interface up");
    }
    Ok(())
}

fn port(
    name: &str,
    config: &Config,
    limits: &Limits,
    context: &Context,
    host: &Host,
) -> Result<Port, OpenError> {
    let refused = |what, advice| {
        let name = name.to_owned();
        move |reason| OpenError::Driver { name, what, reason, advice }
    };
    let gids = context.gids().map_err(refused("ask for its GIDs", ""))?;
    let addresses: Vec<(Ipv4Addr, u32)> = gids
        .iter()
        .filter(|gid| gid.port == u32::from(config.port) && gid.roce_v2 != 0)
        .filter_map(|gid| Some((Ipv6Addr::from(gid.raw).to_ipv4_mapped()?, gid.index)))
        .collect();
    let chosen = match config.address {
        Some(wanted) => addresses.iter().find(|(address, _)| *address == wanted),
        None => addresses.first(),
    };
    // The card's own field for the index has 8 bits.
    let chosen = chosen.and_then(|&(ip, index)| Some((ip, u8::try_from(index).ok()?)));
    let Some((ip, gid_index)) = chosen else {
        let found = addresses.iter().map(|(address, _)| *address).collect();
        let (name, port, address) = (name.to_owned(), config.port, config.address);
        return Err(OpenError::Address { name, port, address, found });
    };
    let mac = host.mac(config.port, gid_index.into());
    let mac = mac.map_err(refused("find the MAC address of its port", "; is /sys mounted?"))?;
    let offered = |able: u32| down_to_power_of_two(config.reads.min(able.min(255) as u8));
    Ok(Port {
        mac,
        ip,
        gid_index,
        endpoint_reads: (offered(limits.responder_reads), offered(limits.initiator_reads)),
        mtu: Mtu::from_bytes(limits.mtu as usize).unwrap_or(Mtu::B256).min(config.mtu),
    })
}

/// Largest accepted number of inline bytes: `wanted`, halved until the device accepts it.
fn most_inline(wanted: u32, mut try_with: impl FnMut(u32) -> io::Result<()>) -> io::Result<u32> {
    let mut bytes = wanted;
    loop {
        match try_with(bytes) {
            Ok(()) => return Ok(bytes),
            Err(error) if bytes == 0 => return Err(error),
            Err(_) => bytes /= 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_bytes_are_halved_until_the_card_agrees() {
        let agrees = |most: u32| {
            move |bytes| if bytes <= most { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
        };
        assert_eq!(most_inline(64, agrees(100)).unwrap(), 64);
        assert_eq!(most_inline(220, agrees(60)).unwrap(), 55);
        assert_eq!(most_inline(64, agrees(0)).unwrap(), 0);
        assert!(
            most_inline(64, |_| Err(io::ErrorKind::OutOfMemory.into())).is_err(),
            "a card without queue pairs"
        );
    }
}
