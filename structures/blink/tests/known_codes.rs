//! What hostile peers can make a process keep: alone in its process, because nothing that was kept goes.

use fatbtree_blink::layers::{CodeError, KeyCode};

#[test]
fn a_process_keeps_so_many_codes_and_no_more() {
    let description = |number: usize| [0, 1, 1, (number / 255 + 1) as u8, 2, (number % 255 + 1) as u8];
    for number in 0..KeyCode::MOST_KNOWN {
        KeyCode::new(&description(number)).unwrap();
    }
    assert_eq!(KeyCode::new(&description(KeyCode::MOST_KNOWN)), Err(CodeError::Many));
    // What is known stays so, and a load goes on without a code.
    let known = KeyCode::new(&description(7)).unwrap();
    assert_eq!(known.description(), description(7));
    let keys: Vec<String> = (1000..9000).map(|number| format!("https://www.example.org/{number}")).collect();
    assert_eq!(KeyCode::of_sorted(keys.len(), |at| keys[at].as_bytes()), KeyCode::NONE);
}
