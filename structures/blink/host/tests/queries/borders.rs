//! Another tree with other keys takes the place of the one that a scan has begun with.

use fatbtree_blink::{Integrity, KeyRange};
use fatbtree_blink_host::{LoadOptions, bulk_load, seeded};
use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_verbs::time::Duration;
use fatbtree_wire::query::records;

use crate::lab::{Lab, RANGE, SEED, address, ask, config};

/// A scan that has read a part of its range reaches what was the border when it began. Its answer would say that all keys up to there were
/// in it, and that another server has those after: so it is asked for once more.
#[test]
fn a_scan_over_which_the_border_moves_ends_at_the_new_one() {
    let border = RANGE.high.unwrap();
    let before: Vec<u64> = (0..300).map(|n| 1000 + n * 10).chain([border - 1]).collect();
    let after: Vec<u64> = before.iter().copied().chain([border, border + 5]).collect();
    let (mut halves, mut asked_again) = (0, 0);
    for steps in 0..40 {
        let mut lab = Lab::new(&before);
        let mut worker = lab.worker(1);
        let mut client = Requester::new(RequesterOptions { servers: vec![(0, 1)], ..Default::default() }, 1);
        // The client is open from then on: a scan begins as soon as it comes.
        let first = ask(&mut lab, &mut worker, &mut client, 1, Ask::scan(1000, 1010, 1), |_| ());
        assert!(matches!(first, Answer::Records { .. }));
        let id = client.ask(lab.now, Ask::scan(1000, border + 100, 1000)).unwrap();
        while let Some(datagram) = client.poll_transmit() {
            worker.worker.handle(lab.now, address(1), &datagram.bytes);
        }
        for _ in 0..steps {
            worker.worker.step(lab.now);
        }
        let is_half = worker.worker.under_way() > 0;
        halves += u32::from(is_half);
        let load = LoadOptions {
            spare_bytes: 4 << 20,
            range: KeyRange { high: Some(2 * border), ..RANGE },
            generation: 2,
            ..LoadOptions::new(config(Integrity::Checksums), 1)
        };
        let tree = bulk_load(&load, &after, &mut seeded(SEED, 20)).unwrap();
        lab.server.install(lab.now, tree).unwrap();
        let (mut found, mut answers) = (Vec::new(), 0);
        let mut asked = Some(id);
        for _ in 0..10_000 {
            worker.settle(&mut lab);
            while let Some(datagram) = worker.worker.poll_transmit() {
                client.handle(lab.now, &datagram.bytes);
            }
            match client.poll_answer() {
                Some((answered, Answer::Records { payload, next })) => {
                    assert_eq!(Some(answered), asked);
                    found.extend(records::read(&payload).map(|record| record.unwrap().0));
                    asked =
                        next.map(|next| client.ask(lab.now, Ask::scan(next, border + 100, 1000)).unwrap());
                    // One that had read all before says rightly where that ends. For the others that border is none any more.
                    answers += 1;
                    asked_again += u32::from(is_half && next.is_none() && answers == 1);
                }
                Some((_, other)) => panic!("{other:?}"),
                None => {}
            }
            if asked.is_none() {
                break;
            }
            while let Some(datagram) = client.poll_transmit() {
                worker.worker.handle(lab.now, address(1), &datagram.bytes);
            }
            lab.now += Duration::from_millis(1);
            client.handle_timeout(lab.now);
        }
        assert_eq!(found, after, "after {steps} steps");
    }
    assert!(asked_again > 10, "{halves} scans were under way, {asked_again} were asked for once more");
}
