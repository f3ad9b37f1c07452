//! Several controllers over the same switches, which are killed, frozen and cut off: one leads in the end, and it has everything.
//!
//! `fatbtree simulate elections` runs other seeds.

use fatbtree_sim::rivals;
use fatbtree_sim::seeds::{Campaign, Seeds};

#[test]
fn one_controller_leads_whatever_happened_to_the_others() {
    let command = "fatbtree simulate elections --seed";
    let report = Campaign { command, ..Campaign::default() }.run(Seeds::fixed(60), rivals::run);
    println!("{:?}", report.total);
    let total = report.into_result().unwrap_or_else(|failures| panic!("{failures}"));
    // The seeds must have been rough.
    let rough = total.put_out > 20 && total.refused > 5 && total.gave_up > 0 && total.terms > 3 * total.runs;
    assert!(rough, "too calm: {total:?}");
    assert!(total.resumed > 5, "no controller has gone on with the plan that it had kept: {total:?}");
}
