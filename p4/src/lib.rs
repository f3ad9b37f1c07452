//! The data plane of Fat-B+Tree as data: what the P4_16 programs of this folder compile to.
//!
//! ```text
//!   include/*.p4 ──┐                    build/fatbtree_v1model.json           ─▶ switch, BMv2
//!                  ├─▶ p4c (compile.sh) build/fatbtree_v1model.p4info.txtpb   ─▶ controller, switch
//!   fatbtree_*.p4 ─┘                    build/sources.sha256                  ─▶ the test that both still match
//! ```
//!
//! Nobody needs p4c to build or run the project: the compiled program is committed beside the sources it came from, with
//! their hashes. Change P4, run `p4/compile.sh`, commit both.
//!
//! ```
//! assert!(fatbtree_p4::P4INFO.contains("fat_root_0"));
//! assert!(fatbtree_p4::PROGRAM.contains("node_set_a.child"));
//! ```

/// The BMv2 program (JSON, format 2.x), for the software switch and for BMv2's `simple_switch_grpc`.
pub const PROGRAM: &str = include_str!("../build/fatbtree_v1model.json");

/// Its P4Info (protobuf text format): tables, actions and counters by name and number.
pub const P4INFO: &str = include_str!("../build/fatbtree_v1model.p4info.txtpb");
