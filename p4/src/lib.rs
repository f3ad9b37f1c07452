//! The data plane of Fat-B+Tree as data: what the P4_16 programs of this folder compile to.
//!
//! ```text
//!   include/*.p4 ──┐                    build/fatbtree_v1model.json           ─▶ switch, BMv2
//!                  ├─▶ p4c (compile.sh) build/fatbtree_v1model.p4info.txtpb   ─▶ controller, switch
//!   fatbtree_*.p4 ─┤                    build/sources.sha256                  ─▶ the test that both still match
//!                  └─▶ p4c (compile_tofino.sh)
//!                                       build/tofino/CHIP-ROLE.p4info.txtpb   ─▶ controller
//!                                       build/tofino/sizes.json               ─▶ the planner's budgets
//! ```
//!
//! The project builds and runs without p4c: the compiled program is committed beside the sources it came from, with
//! their hashes. Change P4, run `p4/compile.sh`, commit both.
//!
//! ```
//! assert!(fatbtree_p4::P4INFO.contains("fat_root_0"));
//! assert!(fatbtree_p4::PROGRAM.contains("node_set_a.coarse"));
//! ```

/// The BMv2 program (JSON, format 2.x), for the software switch and for BMv2's `simple_switch_grpc`.
pub const PROGRAM: &str = include_str!("../build/fatbtree_v1model.json");

/// Its P4Info (protobuf text format): tables, actions and counters by name and number.
pub const P4INFO: &str = include_str!("../build/fatbtree_v1model.p4info.txtpb");

/// What the Tofino programs compile to. The binaries for a switch are not kept here: `p4/compile_tofino.sh DIR` makes them.
pub mod tofino {
    /// Entries, TCAM rows and SRAM blocks of every table, by chip (`tofino`, `tofino2`) and role (`core`, `aggregation`,
    /// `edge`, `single`, `folded`), read from the compiler's listings; JSON.
    pub const SIZES: &str = include_str!("../build/tofino/sizes.json");

    /// The P4Info of one role on one chip, named as in [`SIZES`].
    pub fn p4info(chip: &str, role: &str) -> Option<&'static str> {
        Some(match (chip, role) {
            ("tofino", "core") => include_str!("../build/tofino/tofino-core.p4info.txtpb"),
            ("tofino", "aggregation") => include_str!("../build/tofino/tofino-aggregation.p4info.txtpb"),
            ("tofino", "edge") => include_str!("../build/tofino/tofino-edge.p4info.txtpb"),
            ("tofino", "single") => include_str!("../build/tofino/tofino-single.p4info.txtpb"),
            ("tofino", "folded") => include_str!("../build/tofino/tofino-folded.p4info.txtpb"),
            ("tofino2", "core") => include_str!("../build/tofino/tofino2-core.p4info.txtpb"),
            ("tofino2", "aggregation") => include_str!("../build/tofino/tofino2-aggregation.p4info.txtpb"),
            ("tofino2", "edge") => include_str!("../build/tofino/tofino2-edge.p4info.txtpb"),
            ("tofino2", "single") => include_str!("../build/tofino/tofino2-single.p4info.txtpb"),
            ("tofino2", "folded") => include_str!("../build/tofino/tofino2-folded.p4info.txtpb"),
            _ => return None,
        })
    }
}
