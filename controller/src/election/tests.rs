use std::net::SocketAddr;

use super::*;

fn candidate(port: u16) -> Candidate {
    Candidate::new(SocketAddr::from(([127, 0, 0, 1], port)), 7)
}

fn bid(term: u64, port: u16) -> Bid {
    Bid { term, candidate: candidate(port) }
}

const A: SwitchId = SwitchId(0);
const B: SwitchId = SwitchId(1);
const C: SwitchId = SwitchId(2);

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn election(way: Way) -> Election {
    Election::new(candidate(1), way, [A, B, C], at(0))
}

fn leads(verdict: Verdict) -> Option<(u64, bool)> {
    match verdict {
        Verdict::Lead(Leadership { bid, goes_on }) => Some((bid.term, goes_on)),
        _ => None,
    }
}

#[test]
fn bids_are_ordered_by_term_and_travel_as_election_ids() {
    let all = [Bid::to_look_on(candidate(9)), bid(1, 5), bid(1, 6), bid(2, 1)];
    assert!(all.is_sorted());
    assert!(all.iter().map(|bid| bid.election_id()).is_sorted());
    all.iter().for_each(|bid| assert_eq!(Bid::of(bid.election_id()), *bid));
    assert_eq!(candidate(9690).to_string(), "the controller at 127.0.0.1:9690");
    assert!(candidate(4).shares_address_with(Candidate::new(SocketAddr::from(([127, 0, 0, 1], 4)), 8)));
    let unnamed = Candidate::new("[::1]:4".parse().unwrap(), 8);
    assert!(unnamed.address().is_none() && !unnamed.shares_address_with(unnamed));
}

#[test]
fn a_first_controller_leads_when_it_has_looked_at_all_switches() {
    let mut election = election(Way::Start);
    election.saw(A, Seen::Vacant(None), at(10));
    assert_eq!(election.verdict(at(20)), Verdict::LookOn);
    election.saw(B, Seen::Silent("no answer".to_owned()), at(30));
    election.saw(C, Seen::Vacant(None), at(40));
    assert_eq!(leads(election.verdict(at(40))), Some((1, true)));
}

#[test]
fn a_switch_that_is_frozen_is_not_waited_for_long() {
    let mut election = election(Way::Start);
    election.saw(A, Seen::Vacant(Some(bid(4, 1))), at(10));
    assert_eq!(election.verdict(at(900)), Verdict::LookOn);
    assert_eq!(leads(election.verdict(at(1_000))), Some((5, true)));
}

#[test]
fn one_that_starts_beside_a_primary_gives_up() {
    let mut election = election(Way::Start);
    election.saw(A, Seen::Led(bid(3, 2)), at(10));
    [B, C].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(None), at(20)));
    assert_eq!(election.verdict(at(4_000)), Verdict::LookOn);
    assert_eq!(election.why_not(|_| String::new()), "the controller at 127.0.0.1:2 is");
    assert_eq!(election.verdict(at(5_010)), Verdict::GiveUp { by: bid(3, 2) });
    // It goes before that.
    election.saw(A, Seen::Vacant(Some(bid(3, 2))), at(4_900));
    assert_eq!(leads(election.verdict(at(5_100))), Some((4, false)), "plans of its own are not in force");
}

#[test]
fn a_standby_waits_until_there_is_no_primary() {
    let mut election = election(Way::StandBy);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(10)));
    assert_eq!(election.verdict(at(60_000)), Verdict::LookOn);
    // It loses its connections, and comes back.
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 2))), at(60_000)));
    assert_eq!(election.verdict(at(61_900)), Verdict::LookOn);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(61_900)));
    assert_eq!(election.verdict(at(90_000)), Verdict::LookOn);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 2))), at(90_000)));
    assert_eq!(leads(election.verdict(at(92_000))), Some((4, false)));
}

/// A primary that a standby cannot reach by one switch keeps the others; one that was put out by such a standby takes the place again.
#[test]
fn the_side_with_more_switches_leads() {
    let mut election = election(Way::StandBy);
    [A, B].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(10)));
    election.saw(C, Seen::Vacant(Some(bid(3, 2))), at(10));
    assert_eq!(election.verdict(at(60_000)), Verdict::LookOn);
    election.saw(A, Seen::Vacant(Some(bid(3, 2))), at(60_000));
    assert_eq!(leads(election.verdict(at(62_000))), Some((4, false)));
}

#[test]
fn one_that_comes_back_at_the_same_address_waits_for_nobody() {
    let mut election = election(Way::StandBy);
    [A, B].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 1))), at(10)));
    assert_eq!(election.verdict(at(20)), Verdict::LookOn);
    election.saw(C, Seen::Vacant(None), at(30));
    assert_eq!(leads(election.verdict(at(30))), Some((4, true)));
}

#[test]
fn one_that_takes_over_bids_above_the_primary() {
    let mut election = election(Way::TakeOver);
    election.saw(A, Seen::Led(bid(3, 2)), at(10));
    election.saw(B, Seen::Silent("no answer".to_owned()), at(10));
    assert_eq!(election.verdict(at(20)), Verdict::LookOn);
    election.saw(C, Seen::Vacant(Some(bid(5, 9))), at(30));
    assert_eq!(leads(election.verdict(at(30))), Some((6, false)));
}

#[test]
fn a_term_that_cannot_be_counted_up_overflows_nothing() {
    let mut election = election(Way::TakeOver);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(u64::MAX, 2)), at(10)));
    assert_eq!(leads(election.verdict(at(10))), Some((u64::MAX, false)));
}

#[test]
fn notices_of_candidates_that_look_on_count_as_no_primary() {
    let looks_on = Some(Bid::to_look_on(candidate(2)).election_id());
    let led = Some(bid(3, 2).election_id());
    for (notice, seen) in [
        (Mastership::Primary, Seen::Vacant(None)),
        (Mastership::Backup { highest: looks_on }, Seen::Vacant(None)),
        (Mastership::Vacant { highest: looks_on }, Seen::Vacant(None)),
        (Mastership::Backup { highest: led }, Seen::Led(bid(3, 2))),
        (Mastership::Vacant { highest: led }, Seen::Vacant(Some(bid(3, 2)))),
    ] {
        assert_eq!(Seen::of(&notice), seen, "{notice:?}");
    }
}
