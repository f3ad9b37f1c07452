//! A controller and the keepers of its switches, which answer at once.

use fatbtree_controller::{Controller, Keeper, Pace, Registration};
use fatbtree_memserver::FirstHop;
use fatbtree_switch::service::{StreamId, Switch};
use fatbtree_topology::{Cluster, HostId, Network as Topology, SwitchId};
use fatbtree_verbs::time::Instant;

use crate::network::{COOKIE, Network, WriteRefused};

/// Drives a controller and a keeper for each switch, a request at a time: in between, packets pass.
pub struct Control {
    /// The controller's knowledge and decisions.
    pub controller: Controller,
    keepers: Vec<Keeper>,
    pace: Pace,
}

/// No time passes for keepers: they never look again at what a switch runs.
const NOW: Instant = Instant::ZERO;
const SESSION: StreamId = StreamId(1);

impl Control {
    /// Creates a controller with `piece` changes in a write. `draw` decides where epochs begin.
    pub fn new(cluster: &Cluster, piece: usize, draw: u8) -> Self {
        let switches = cluster.tree().switches().iter();
        Self {
            controller: Controller::new(cluster, 1_000, draw),
            keepers: switches.map(|switch| Keeper::new(switch.id, Some(COOKIE)).with_piece(piece)).collect(),
            pace: Pace::new(f64::INFINITY),
        }
    }

    /// Takes in what the keeper of a switch has to say, and carries out its next request. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// When the switch refuses it.
    fn step(
        &mut self,
        network: &Network,
        switches: &mut [Switch],
        switch: SwitchId,
    ) -> Result<bool, WriteRefused> {
        let Self { controller, keepers, pace } = self;
        let keeper = &mut keepers[switch.0 as usize];
        let (version, desired) = controller.desired();
        let request = keeper.poll_request(NOW, (version, desired), pace);
        while let Some(notice) = keeper.poll_notice() {
            controller.switch_noticed(switch, &notice);
        }
        let Some(request) = request else { return Ok(false) };
        let answer = network.answer(&mut switches[switch.0 as usize], switch, SESSION, request)?;
        keeper.handle_answer(NOW, answer);
        Ok(true)
    }

    /// Carries out one request, to the first of these switches for which there is one. Returns whether there was any.
    /// Notices of keepers take no time, and may be all that the next stage of a reload waits for.
    ///
    /// # Errors
    /// When the switch refuses it.
    pub fn step_first(
        &mut self,
        network: &Network,
        switches: &mut [Switch],
        order: &[SwitchId],
    ) -> Result<bool, WriteRefused> {
        loop {
            let (version, _) = self.controller.desired();
            for switch in order {
                if self.step(network, switches, *switch)? {
                    return Ok(true);
                }
            }
            if self.controller.desired().0 == version {
                return Ok(false);
            }
        }
    }

    /// Brings one switch to what is desired now.
    ///
    /// # Errors
    /// When the switch refuses a request.
    pub fn settle_one(
        &mut self,
        network: &Network,
        switches: &mut [Switch],
        switch: SwitchId,
    ) -> Result<(), WriteRefused> {
        while self.step(network, switches, switch)? {}
        Ok(())
    }

    /// Brings all switches to what is desired, to the end of a reload.
    ///
    /// # Errors
    /// When a switch refuses a request.
    pub fn settle(&mut self, network: &Network, switches: &mut [Switch]) -> Result<(), WriteRefused> {
        let all: Vec<SwitchId> = network.tree().switches().iter().map(|switch| switch.id).collect();
        while self.step_first(network, switches, &all)? {}
        Ok(())
    }
}

/// A connection that a memory server has opened, as its controller is told of it.
pub fn registration(hop: &FirstHop) -> Registration {
    let FirstHop { client, queue_pair, rkey, root, mtu, .. } = *hop;
    Registration { client, queue_pair: queue_pair.0, rkey, root: root.raw(), mtu }
}

/// A cluster of a network, which its file describes so, with memory servers on these hosts, by partition, and clients.
///
/// # Errors
/// When there is no such cluster.
pub fn described(
    kind: &str,
    topology: &Topology,
    servers: &[HostId],
    clients: &[HostId],
) -> Result<Cluster, String> {
    let mut text = format!("[network]\n{kind}\n");
    for (number, host) in servers.iter().enumerate() {
        let (name, port) = (topology.host(*host).name(), 9_700 + number);
        text += &format!("[[memory_server]]\nhost = \"{name}\"\ngrpc = \"127.0.0.1:{port}\"\n");
    }
    for host in clients {
        text += &format!("[[client]]\nhost = \"{}\"\n", topology.host(*host).name());
    }
    Cluster::from_toml(&text).map_err(|error| error.to_string())
}
