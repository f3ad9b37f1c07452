use super::*;

fn loaded(key: u64) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    value::fill(key, 5, &mut bytes);
    bytes
}

#[test]
fn values_of_a_file_are_right_until_they_are_replaced() {
    let values = Values::new(5, 16).among_others(77).loaded_with(|key, bytes| key == 7 && bytes == b"seven");
    let began = values.begin();
    assert!(values.allows(7, &began, Some(b"seven")));
    assert!(!values.allows(7, &began, Some(b"eight")) && !values.allows(8, &began, Some(b"seven")));
    assert!(!values.allows(7, &began, None) && !values.allows(7, &began, Some(&[0; 16])));
    values.end(began);
    let (write, bytes) = values.write(7, true, values.length());
    values.wrote(7, write);
    let began = values.begin();
    assert!(values.allows(7, &began, Some(&bytes)) && !values.allows(7, &began, Some(b"seven")));
}

#[test]
fn a_key_that_nobody_writes_has_its_first_value() {
    let values = Values::new(5, 8);
    let began = values.begin();
    assert!(values.allows(1, &began, Some(&loaded(1))));
    assert!(!values.allows(1, &began, Some(&loaded(2))));
    assert!(!values.allows(1, &began, Some(&loaded(1)[..7])), "the beginning of the value");
    assert!(!values.allows(1, &began, None));
}

#[test]
fn while_a_value_is_written_both_may_be_read_and_afterwards_only_the_new_one() {
    let values = Values::new(5, 8);
    let before = values.begin();
    let (write, new) = values.write(1, true, values.length());
    let during = values.begin();
    for began in [&before, &during] {
        assert!(values.allows(1, began, Some(&loaded(1))) && values.allows(1, began, Some(&new)));
    }
    values.wrote(1, write);
    let after = values.begin();
    assert!(values.allows(1, &during, Some(&loaded(1))), "it may have been read before");
    assert!(!values.allows(1, &after, Some(&loaded(1))) && values.allows(1, &after, Some(&new)));
    values.end(before);
}

#[test]
fn of_two_writes_at_a_time_either_may_be_the_last() {
    let values = Values::new(5, 8);
    let (first, a) = values.write(1, true, values.length());
    let (second, b) = values.write(1, true, values.length());
    values.wrote(1, second);
    values.wrote(1, first);
    let began = values.begin();
    assert!(values.allows(1, &began, Some(&a)) && values.allows(1, &began, Some(&b)));
    assert!(!values.allows(1, &began, Some(&loaded(1))));
    let (third, c) = values.write(1, true, values.length());
    values.wrote(1, third);
    let began = values.begin();
    assert!(values.allows(1, &began, Some(&c)) && !values.allows(1, &began, Some(&a)));
}

#[test]
fn a_new_key_is_absent_until_it_is_there() {
    let values = Values::new(5, 8);
    let (write, new) = values.write(1, false, values.length());
    let during = values.begin();
    assert!(values.allows(1, &during, None) && values.allows(1, &during, Some(&new)));
    values.wrote(1, write);
    assert!(!values.allows(1, &values.begin(), None));
}

#[test]
fn a_scan_has_every_key_that_was_there_before_and_no_other() {
    let values = Values::new(5, 8).with_keys([1, 3, 5, 7].into());
    let before = values.begin();
    let (write, new) = values.write(4, false, values.length());
    values.wrote(4, write);
    let after = values.begin();
    let allows = |began, most, keys: &[u64]| {
        let value = |key| if key == 4 { new.clone() } else { loaded(key) };
        let found: Vec<_> = keys.iter().map(|key| (*key, value(*key))).collect();
        values.allows_scan(3, most, began, &found)
    };
    assert!(allows(&after, 3, &[3, 4, 5]) && allows(&after, 9, &[3, 4, 5, 7]));
    assert!(allows(&before, 3, &[3, 4, 5]) && allows(&before, 3, &[3, 5, 7]), "it was there during the scan");
    assert!(!allows(&after, 3, &[3, 5, 7]), "4 is missing");
    assert!(!allows(&after, 3, &[3, 4, 7]) && !allows(&after, 9, &[3, 4, 5]), "5, and 7");
    assert!(
        !allows(&after, 3, &[4, 3, 5]) && !allows(&after, 3, &[1, 3, 4]) && !allows(&after, 2, &[3, 4, 5])
    );
    assert!(!values.allows_scan(3, 1, &after, &[(3, loaded(5))]));
}

fn other_runs(key: u64, stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    value::stamp(key, stamp, &mut bytes);
    bytes
}

#[test]
fn values_of_other_runs_are_known_by_themselves() {
    let values = Values::new(5, 16).among_others(1 << 40);
    let mut loaded = vec![0; 16];
    value::fill(1, 5, &mut loaded);
    let began = values.begin();
    assert!(values.allows(1, &began, Some(&loaded)));
    assert!(values.allows(1, &began, Some(&other_runs(1, 77))));
    assert!(!values.allows(1, &began, Some(&other_runs(2, 77))), "another key's");
    for bit in 0..128 {
        let mut damaged = other_runs(1, 77);
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!values.allows(1, &began, Some(&damaged)), "bit {bit}");
    }
    let torn = [&other_runs(1, 77)[..8], &other_runs(1, 78)[8..]].concat();
    assert!(!values.allows(1, &began, Some(&torn)), "half of each");
    assert!(!values.allows(1, &began, None) && !values.allows(1, &began, Some(&[0; 16])));
    // Without others there are none.
    let alone = Values::new(5, 16);
    assert!(!alone.allows(1, &alone.begin(), Some(&other_runs(1, 77))));
}

#[test]
fn no_value_comes_back_once_it_was_replaced_whoever_wrote_it() {
    let values = Values::new(5, 16).among_others(1 << 40);
    let mut loaded = vec![0; 16];
    value::fill(1, 5, &mut loaded);
    let reads = |value: &[u8]| {
        let began = values.begin();
        let may = values.allows(1, &began, Some(value));
        values.end(began);
        may
    };
    let writes = || {
        let (write, value) = values.write(1, true, values.length());
        values.wrote(1, write);
        value
    };
    let theirs = other_runs(1, 77);
    assert!(reads(&loaded) && reads(&theirs));
    assert!(!reads(&loaded), "theirs has taken its place");
    let ours = writes();
    assert!(reads(&ours));
    assert!(!reads(&theirs) && !reads(&loaded));
    // However many were written since.
    let newest = (0..100).fold(Default::default(), |_, _| writes());
    assert!(!reads(&theirs) && !reads(&ours) && reads(&newest));
    // Another run writes on; ours is gone then, and theirs from before does not come back either.
    assert!(reads(&other_runs(1, 78)));
    assert!(!reads(&newest) && reads(&other_runs(1, 78)));
    assert!(!reads(&theirs));
    // What this run has not written yet it cannot have read.
    assert!(reads(&other_runs(1, (1 << 40) + 5000)), "by its number it is another run's");
    let (_, damaged) = values.write(2, true, values.length());
    assert!(!values.allows(1, &values.begin(), Some(&damaged)), "another key's of this run");
}

#[test]
fn reads_that_overlap_another_runs_write_may_have_either() {
    let values = Values::new(5, 16).among_others(1 << 40);
    let mut loaded = vec![0; 16];
    value::fill(1, 5, &mut loaded);
    let (early, late) = (values.begin(), values.begin());
    assert!(values.allows(1, &late, Some(&other_runs(1, 77))));
    assert!(values.allows(1, &early, Some(&loaded)), "it began before theirs was read");
    let (_, ours) = values.write(1, true, values.length());
    assert!(values.allows(1, &early, Some(&ours)) && values.allows(1, &late, Some(&other_runs(1, 77))));
}

#[test]
fn what_nobody_can_read_any_more_is_forgotten_and_nothing_else() {
    let values = Values::new(5, 8);
    let old = values.begin();
    for _ in 0..100 {
        let (write, _) = values.write(1, true, values.length());
        values.wrote(1, write);
    }
    assert!(values.allows(1, &old, Some(&loaded(1))), "it began before all of them");
    values.end(old);
    let (write, _) = values.write(1, true, values.length());
    values.wrote(1, write);
    assert_eq!(values.state.borrow().written[&1].len(), 2);
}

#[test]
fn a_deleted_key_is_absent_until_it_is_written_again() {
    let values = Values::new(5, 8);
    let before = values.begin();
    let delete = values.delete(1);
    assert!(values.allows(1, &before, None) && values.allows(1, &before, Some(&loaded(1))));
    values.wrote(1, delete);
    let after = values.begin();
    assert!(values.allows(1, &after, None) && !values.allows(1, &after, Some(&loaded(1))));
    let (write, new) = values.write(1, true, 8);
    values.wrote(1, write);
    let after = values.begin();
    assert!(values.allows(1, &after, Some(&new)) && !values.allows(1, &after, None));
}

#[test]
fn a_change_is_refused_only_where_the_key_may_be_so() {
    let values = Values::new(5, 8).without(|key| key >= 100);
    let began = values.begin();
    assert!(values.allows(100, &began, None) && !values.allows(1, &began, None));
    let (insert, _) = values.write(1, true, 8);
    assert!(values.refused(1, insert, &began, true), "it was loaded");
    let (update, _) = values.write(1, true, 8);
    assert!(!values.refused(1, update, &began, false), "it was loaded");
    assert!(values.allows(1, &began, Some(&loaded(1))), "neither has changed it");
    let delete = values.delete(100);
    assert!(values.refused(100, delete, &began, false), "it was not loaded");
    let (insert, _) = values.write(100, true, 8);
    assert!(!values.refused(100, insert, &began, true), "it was not loaded");
    assert!(values.allows(100, &began, None));
    // While another change is under way, both are possible.
    let (insert, _) = values.write(100, true, 8);
    let (update, _) = values.write(100, true, 8);
    assert!(values.refused(100, update, &began, false));
    let (second, _) = values.write(100, true, 8);
    assert!(values.refused(100, second, &began, true));
    values.wrote(100, insert);
    let later = values.begin();
    let (update, _) = values.write(100, true, 8);
    assert!(!values.refused(100, update, &later, false), "it is there by now");
}

#[test]
fn a_scan_may_miss_what_this_run_deletes_and_nothing_else() {
    let values = Values::new(5, 8).with_keys([1, 3, 5].into());
    let pairs = |keys: &[u64]| keys.iter().map(|key| (*key, loaded(*key))).collect::<Vec<_>>();
    let delete = values.delete(3);
    let during = values.begin();
    assert!(values.allows_scan(1, 9, &during, &pairs(&[1, 3, 5])));
    assert!(values.allows_scan(1, 9, &during, &pairs(&[1, 5])));
    assert!(!values.allows_scan(1, 9, &during, &pairs(&[1, 3])));
    values.wrote(3, delete);
    let after = values.begin();
    assert!(values.allows_scan(1, 9, &after, &pairs(&[1, 5])));
    assert!(!values.allows_scan(1, 9, &after, &pairs(&[1, 3, 5])));
}
