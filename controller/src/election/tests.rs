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

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn election(way: Way) -> Election {
    Election::new(candidate(1), way, Some(bid(3, 1)), [A, B, C], at(0))
}

const HALF: Duration = Duration::from_millis(500);

/// The verdict at this time, after it was asked for twice a second until then.
fn verdict_at(election: &mut Election, now: Instant) -> Verdict {
    while now > election.asked + HALF {
        let between = election.asked + HALF;
        match election.verdict(between) {
            Verdict::LookOn => {}
            sooner => panic!("{sooner:?} at {between:?}"),
        }
    }
    election.verdict(now)
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
    let sessions = [0, 1, 65_535];
    let ids: Vec<u128> = all.iter().flat_map(|bid| sessions.map(|number| bid.election_id(number))).collect();
    assert!(
        ids.is_sorted_by(|a, b| a < b),
        "a later session outbids an earlier one, and no other bid: {ids:x?}"
    );
    all.iter()
        .for_each(|bid| assert!(sessions.iter().all(|number| Bid::of(bid.election_id(*number)) == *bid)));
    assert_eq!(bid(1, 5).election_id(65_536), bid(1, 5).election_id(65_535), "the next bid is never reached");
    assert_eq!(candidate(9690).to_string(), "the controller at 127.0.0.1:9690");
    assert!(candidate(4).shares_address_with(Candidate::new(SocketAddr::from(([127, 0, 0, 1], 4)), 8)));
    let unnamed = Candidate::new("[::1]:4".parse().unwrap(), 8);
    assert!(unnamed.address().is_none() && !unnamed.shares_address_with(unnamed));
}

#[test]
fn a_first_controller_leads_when_it_has_looked_at_all_switches() {
    let mut election = election(Way::Start);
    election.saw(A, Seen::Vacant(None), at(10));
    assert_eq!(verdict_at(&mut election, at(20)), Verdict::LookOn);
    election.saw(B, Seen::Silent("no answer".to_owned()), at(30));
    election.saw(C, Seen::Vacant(None), at(40));
    assert_eq!(leads(verdict_at(&mut election, at(40))), Some((1, true)));
}

#[test]
fn a_switch_that_is_frozen_is_not_waited_for_long() {
    let mut election = election(Way::Start);
    election.saw(A, Seen::Vacant(Some(bid(3, 1))), at(10));
    assert_eq!(verdict_at(&mut election, at(900)), Verdict::LookOn);
    assert_eq!(leads(verdict_at(&mut election, at(1_000))), Some((4, true)));
}

#[test]
fn one_that_starts_beside_a_primary_gives_up() {
    let mut election = election(Way::Start);
    election.saw(A, Seen::Led(bid(3, 2)), at(10));
    [B, C].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(None), at(20)));
    assert_eq!(verdict_at(&mut election, at(11_900)), Verdict::LookOn);
    assert_eq!(election.why_not(|_| String::new()), "the controller at 127.0.0.1:2 is");
    assert_eq!(verdict_at(&mut election, at(12_010)), Verdict::GiveUp { by: bid(3, 2) });
}

/// The machine of the primary has lost power, and the switches notice it as late as they may.
#[test]
fn one_that_starts_in_the_place_of_a_primary_that_is_dying_waits_until_switches_notice() {
    let mut election = election(Way::Start);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(10)));
    let notice = Instant::ZERO + Duration::from(KEEP_ALIVE) * 2 + HALF;
    assert_eq!(verdict_at(&mut election, notice), Verdict::LookOn);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 2))), notice));
    assert_eq!(leads(election.verdict(notice)), Some((4, false)), "plans of its own are not active");
}

/// The machine of the primary is gone, and with it most of the switches.
#[test]
fn switches_that_do_not_answer_have_no_say() {
    let mut election = election(Way::StandBy);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(10)));
    [A, B].iter().for_each(|switch| election.saw(*switch, Seen::Silent("no answer".to_owned()), at(5_000)));
    assert_eq!(verdict_at(&mut election, at(10_000)), Verdict::LookOn, "the primary still has a switch");
    election.saw(C, Seen::Vacant(Some(bid(3, 2))), at(10_000));
    assert_eq!(verdict_at(&mut election, at(11_900)), Verdict::LookOn);
    assert_eq!(leads(verdict_at(&mut election, at(12_000))), Some((4, false)));
}

/// It had waited long enough, but for a moment; meanwhile another controller leads, and that is still to be read.
#[test]
fn one_that_was_suspended_looks_anew() {
    for way in [Way::StandBy, Way::Start, Way::TakeOver] {
        let mut election = election(way);
        [A, B].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 2))), at(10)));
        assert_eq!(verdict_at(&mut election, at(900)), Verdict::LookOn, "{way:?}");
        assert_eq!(election.verdict(at(60_000)), Verdict::LookAnew, "{way:?}");
        // One that was on its way to it.
        election.saw(C, Seen::Vacant(Some(bid(3, 2))), at(60_000));
        assert_eq!(election.verdict(at(60_000)), Verdict::LookAnew, "{way:?}");
    }
}

#[test]
fn kept_plans_are_in_force_only_if_no_other_controller_has_led_since() {
    // Its address does not count: it has none that fits, or listens at all of its machine's.
    for address in ["[::1]:9690", "0.0.0.0:9690", "127.0.0.1:9690"] {
        let [before, now] = [7, 8].map(|draw| Candidate::new(address.parse().unwrap(), draw));
        let [kept, later] = [4, 5].map(|term| Bid { term, candidate: before });
        for (last, highest, goes_on) in [
            (Some(kept), Some(kept), true),
            (Some(kept), None, true),
            (Some(kept), Some(bid(5, 2)), false),
            (Some(kept), Some(later), false),
            (None, Some(kept), false),
            (None, None, true),
        ] {
            let mut election = Election::new(now, Way::Start, last, [A], at(0));
            election.saw(A, Seen::Vacant(highest), at(10));
            let Verdict::Lead(leadership) = election.verdict(at(10)) else { panic!("it leads at once") };
            assert_eq!(leadership.goes_on, goes_on, "{address}: {last:?}, {highest:?}");
        }
    }
}

#[test]
fn a_standby_waits_until_there_is_no_primary() {
    let mut election = election(Way::StandBy);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(10)));
    assert_eq!(verdict_at(&mut election, at(60_000)), Verdict::LookOn);
    // It loses its connections, and comes back.
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 2))), at(60_000)));
    assert_eq!(verdict_at(&mut election, at(61_900)), Verdict::LookOn);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(61_900)));
    assert_eq!(verdict_at(&mut election, at(90_000)), Verdict::LookOn);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 2))), at(90_000)));
    assert_eq!(leads(verdict_at(&mut election, at(92_000))), Some((4, false)));
}

/// A primary that a standby cannot reach by one switch keeps the others; one that was put out by such a standby takes the place again.
#[test]
fn the_side_with_more_switches_leads() {
    let mut election = election(Way::StandBy);
    [A, B].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(3, 2)), at(10)));
    election.saw(C, Seen::Vacant(Some(bid(3, 2))), at(10));
    assert_eq!(verdict_at(&mut election, at(60_000)), Verdict::LookOn);
    election.saw(A, Seen::Vacant(Some(bid(3, 2))), at(60_000));
    assert_eq!(leads(verdict_at(&mut election, at(62_000))), Some((4, false)));
}

#[test]
fn one_that_comes_back_at_the_same_address_waits_for_nobody() {
    let mut election = election(Way::StandBy);
    [A, B].iter().for_each(|switch| election.saw(*switch, Seen::Vacant(Some(bid(3, 1))), at(10)));
    assert_eq!(verdict_at(&mut election, at(20)), Verdict::LookOn);
    election.saw(C, Seen::Vacant(None), at(30));
    assert_eq!(leads(verdict_at(&mut election, at(30))), Some((4, true)));
}

#[test]
fn one_that_takes_over_bids_above_the_primary() {
    let mut election = election(Way::TakeOver);
    election.saw(A, Seen::Led(bid(3, 2)), at(10));
    election.saw(B, Seen::Silent("no answer".to_owned()), at(10));
    assert_eq!(verdict_at(&mut election, at(20)), Verdict::LookOn);
    election.saw(C, Seen::Vacant(Some(bid(5, 9))), at(30));
    assert_eq!(leads(verdict_at(&mut election, at(30))), Some((6, false)));
}

#[test]
fn a_term_that_cannot_be_counted_up_overflows_nothing() {
    let mut election = election(Way::TakeOver);
    [A, B, C].iter().for_each(|switch| election.saw(*switch, Seen::Led(bid(Bid::LAST_TERM, 2)), at(10)));
    assert_eq!(leads(verdict_at(&mut election, at(10))), Some((Bid::LAST_TERM, false)));
}

#[test]
fn notices_of_candidates_that_look_on_count_as_no_primary() {
    let looks_on = Some(Bid::to_look_on(candidate(2)).election_id(0));
    let led = Some(bid(3, 2).election_id(0));
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
