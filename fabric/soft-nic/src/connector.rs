//! Connections by the Communication Manager: the owner's interface, and the datagrams of queue pair 1.

use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{
    Agreed, ConnectError, Connection, ConnectionEvent, Connector, Endpoint, QueuePair, QueuePairState,
    Service,
};
use fatbtree_wire::cm::{MANAGEMENT_QUEUE_KEY, MANAGEMENT_QUEUE_PAIR, Mad};
use fatbtree_wire::{Bth, DEFAULT_PKEY, Deth, Extension, Flow, Frame, HeaderTemplate, Opcode};
use rand::Rng;

use crate::Nic;
use crate::connections::Peer;
use crate::stats::DropReason;

/// Checks the length of private data.
fn fits(private: &[u8], limit: usize) -> Result<(), ConnectError> {
    let found = private.len();
    if found <= limit { Ok(()) } else { Err(ConnectError::PrivateData { found, limit }) }
}

impl Nic {
    /// The endpoint of a queue pair that is new.
    fn new_endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        let core = self.table.get(queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
        match core.state {
            QueuePairState::Reset => Ok(core.endpoint(&self.config)),
            state => Err(ConnectError::State { queue_pair, state }),
        }
    }

    /// Takes a datagram for queue pair 1.
    pub(crate) fn handle_datagram(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), DropReason> {
        if frame.bth.pkey | 0x8000 != DEFAULT_PKEY {
            return Err(DropReason::WrongPkey);
        }
        let Extension::Deth(deth) = frame.extension else { return Err(DropReason::UnknownOpcode) };
        let is_managements = deth.qkey == MANAGEMENT_QUEUE_KEY && deth.source_qp == MANAGEMENT_QUEUE_PAIR;
        let mad = Mad::parse(frame.payload).ok().filter(|_| is_managements);
        let Some(mad) = mad else { return Err(DropReason::OtherManagement) };
        let peer = Peer { mac: frame.ethernet.source, ip: frame.ipv4.source };
        let Nic { table, config, longest_message, manager, rng, .. } = self;
        let mut connect = |queue_pair, remote: &Endpoint| {
            let core = table.get_mut(queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
            core.connect_managed(remote, config, *longest_message)
        };
        manager.handle(now, peer, &mad, &mut connect, &mut || rng.next_u32());
        Ok(())
    }

    /// Writes the next datagram of queue pair 1 into `out`, if there is one.
    pub(crate) fn transmit_datagram(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let Some((peer, mad)) = self.manager.transmit(now) else { return false };
        let template = HeaderTemplate::new(&Flow {
            source_mac: self.config.mac,
            destination_mac: peer.mac,
            source_ip: self.config.ip,
            destination_ip: peer.ip,
            tos: self.config.tos,
            ttl: self.config.ttl,
            ..Flow::default()
        });
        let deth = Deth { qkey: MANAGEMENT_QUEUE_KEY, resv8: 0, source_qp: MANAGEMENT_QUEUE_PAIR };
        let psn = self.datagrams & 0xff_ffff;
        let bth = Bth::new(Opcode::UD_SEND_ONLY, MANAGEMENT_QUEUE_PAIR, psn);
        template.emit(out, self.datagrams as u16, &bth, &Extension::Deth(deth), &mad.to_bytes());
        self.datagrams = self.datagrams.wrapping_add(1);
        self.passed_by = 0;
        true
    }
}

impl Connector for Nic {
    fn listen(&mut self, port: u16) {
        self.manager.listen(port);
    }

    fn request(
        &mut self,
        queue_pair: QueuePair,
        to: &Service,
        private: &[u8],
    ) -> Result<Connection, ConnectError> {
        fits(private, Self::REQUEST_BYTES)?;
        let local = self.new_endpoint(queue_pair)?;
        let peer = Peer { mac: to.mac, ip: to.ip };
        let Nic { manager, rng, .. } = self;
        manager.request(queue_pair, local, peer, to.port, private, &mut || rng.next_u32())
    }

    fn accept(
        &mut self,
        connection: Connection,
        queue_pair: QueuePair,
        private: &[u8],
    ) -> Result<Agreed, ConnectError> {
        fits(private, Self::ACCEPT_BYTES)?;
        let remote = self.manager.waiting(connection)?;
        let local = self.new_endpoint(queue_pair)?;
        let core = self.table.get_mut(queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
        let agreed = core.connect_managed(&remote, &self.config, self.longest_message)?;
        self.manager.accept(connection, queue_pair, local, agreed, private);
        Ok(agreed)
    }

    fn reject(&mut self, connection: Connection, private: &[u8]) -> Result<(), ConnectError> {
        fits(private, Self::REJECT_BYTES)?;
        self.manager.waiting(connection)?;
        self.manager.reject(connection, private);
        Ok(())
    }

    fn disconnect(&mut self, connection: Connection) {
        let Nic { manager, rng, .. } = self;
        manager.disconnect(connection, &mut || rng.next_u32());
    }

    fn poll_connection(&mut self) -> Option<(Connection, ConnectionEvent)> {
        self.manager.poll_event()
    }
}
