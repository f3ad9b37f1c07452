//! What loss costs, in virtual time.
use crate::common;

use common::{CLIENT, Pair, SERVER, read, write};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, Message, Messages, Verbs};

const REQUESTS: u64 = 60_000;
const AT_ONCE: u64 = 16;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Send,
}

/// Time that so many requests take, some at once, with the NIC's own timers.
fn time(kind: Kind, drop: u16) -> Duration {
    let rates = FaultRates { drop, ..FaultRates::NONE };
    let [client, server] = [CLIENT, SERVER].map(|(mac, ip)| NicConfig::new(mac, ip));
    let mut pair = Pair::with(1, client, server, QueuePairOptions::default(), rates);
    let (_, region) = pair.register(&[7; 64], 1 << 40, Access::ALL);
    let (mut posted, mut done) = (0, 0);
    for _ in 0..2 * AT_ONCE {
        pair.server.receive(pair.peer, 0, 64).unwrap();
    }
    while done < REQUESTS {
        while posted < REQUESTS && posted - done < AT_ONCE {
            match kind {
                Kind::Read => pair.post(posted, read(region.iova, region.rkey, 64)).unwrap(),
                Kind::Write => pair.post(posted, write(region.iova, region.rkey, &[1; 64])).unwrap(),
                Kind::Send => {
                    let message = Message::Send { data: &[1; 64], immediate: None };
                    pair.client.send(pair.queue_pair, posted, message).unwrap();
                }
            }
            posted += 1;
        }
        assert!(pair.step(), "something is on its way");
        while let Some(completion) = pair.client.poll() {
            completion.result.unwrap();
            done += 1;
        }
        while pair.server.poll_received().is_some() {
            pair.server.receive(pair.peer, 0, 64).unwrap();
        }
    }
    pair.now - Instant::ZERO
}

/// One frame in a thousand is lost. What follows it tells at once: no timer has to end.
#[test]
fn a_tenth_of_a_percent_costs_less_than_a_tenth_of_the_rate() {
    for kind in [Kind::Read, Kind::Write, Kind::Send] {
        let (without, with) = (time(kind, 0), time(kind, 10));
        let rate = without.as_nanos() as f64 / with.as_nanos() as f64;
        assert!(rate > 0.9, "{kind:?}: {rate:.2} of the rate");
    }
}
