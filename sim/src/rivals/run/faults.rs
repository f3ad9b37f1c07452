//! Faults: processes that end, freeze or come back, cut connections, empty switches.

use fatbtree_controller::Registration;
use fatbtree_controller::election::Way;
use fatbtree_controller::grpc::ServerNews;
use fatbtree_switch::service::{Request, StreamEvent};
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time::Duration;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::World;
use crate::network::blank;
use crate::rivals::process::{Life, Office};

impl World {
    pub(super) fn goes_wrong(&mut self) {
        if !self.random.random_bool(0.02) {
            return;
        }
        let number = self.random.random_range(0..self.processes.len());
        let switch = self.ids[self.random.random_range(0..self.ids.len())];
        let millis = |random: &mut ChaCha8Rng, most| Duration::from_millis(random.random_range(50..most));
        match self.random.random_range(0..10) {
            0 | 1 => {
                self.ends(number);
                let back = self.now + millis(&mut self.random, 8_000);
                self.processes[number].life = Life::Dead(back);
            }
            2 | 3 if self.processes[number].runs() => self.processes[number].life = Life::Frozen(self.now),
            4 => {
                let until = self.now + millis(&mut self.random, 6_000);
                self.cuts.push((number, switch, until));
                self.close(number, switch);
            }
            5 => {
                let at = self.ids.iter().position(|id| *id == switch).unwrap_or(0);
                self.switches[at] = blank(switch);
                for number in 0..self.processes.len() {
                    self.processes[number].end_of(switch);
                }
            }
            6 => {
                self.ends(number);
                let way = if self.random.random_bool(0.5) { Way::Start } else { Way::TakeOver };
                self.start(number, way);
            }
            7 | 8 => {
                let partition = self.random.random_range(0..self.tops.len()) as u16;
                self.opens(partition);
            }
            _ => {
                if let Some(leader) = self.leader() {
                    self.asks_for_plan(leader);
                }
            }
        }
    }

    pub(super) fn opens(&mut self, partition: u16) {
        let host = self.described.clients()[0].host;
        let registration = Registration {
            client: self.described.tree().host(host).ip,
            queue_pair: 2 + self.connections[&partition].len() as u32,
            rkey: self.random.random_range(2..1_000),
            root: self.tops[usize::from(partition)].partition.root.raw(),
            mtu: 1024,
        };
        self.connections.entry(partition).or_default().push(registration);
        if let Some((home, stream)) = self.homes[&partition]
            && let Office::Leads { primary, .. } = &mut self.processes[home].office
        {
            primary.server_news(stream, partition, ServerNews::Opened(registration));
        }
    }

    /// The process is gone, and the system closes its connections.
    pub(super) fn ends(&mut self, number: usize) {
        for switch in self.ids.clone() {
            self.close(number, switch);
        }
        self.writes.retain(|write| write.from != number);
    }

    pub(super) fn start(&mut self, number: usize, way: Way) {
        let process = &mut self.processes[number];
        if process.runs() && way == Way::StandBy {
            return;
        }
        if let Life::Frozen(_) = process.life
            && way == Way::StandBy
        {
            (process.life, process.has_thawed) = (Life::Runs, true);
            return;
        }
        process.again(self.random.random(), way, &self.ids, self.now);
    }

    /// A switch hears that a session has ended, and so does the process, if it runs.
    pub(super) fn close(&mut self, number: usize, switch: SwitchId) {
        let Some(session) = self.processes[number].sessions.get(&switch) else { return };
        let stream = session.stream;
        let at = self.ids.iter().position(|id| *id == switch).unwrap_or(0);
        self.switches[at].handle_request(Request::Stream(stream, StreamEvent::Closed));
        self.processes[number].end_of(switch);
    }
}
