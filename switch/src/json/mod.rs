//! The BMv2 JSON format, version 2.x, as `p4c-bm2-ss` writes it for v1model
//! (behavioral-model `docs/JSON_format.md`, version 2.24).
//!
//! Everything the format has is read, with unknown keys refused, so that nothing passes unseen; what this
//! switch does not run is refused by name while lowering. Source positions are read and forgotten.

mod value;

use serde::Deserialize;
use serde::de::IgnoredAny;

pub(crate) use value::{Expr, RawValue, Value, hex_u64, hex_words};

/// `(header instance, field)`.
pub(crate) type FieldName = (String, String);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    #[serde(rename = "__meta__")]
    pub(crate) meta: Option<Meta>,
    #[serde(rename = "program")]
    _program: Option<IgnoredAny>,
    pub(crate) header_types: Vec<HeaderType>,
    pub(crate) headers: Vec<Header>,
    #[serde(default)]
    pub(crate) header_stacks: Vec<Named>,
    /// Declarations only; instances are in `header_unions`.
    #[serde(default, rename = "header_union_types")]
    _header_union_types: Vec<IgnoredAny>,
    #[serde(default)]
    pub(crate) header_unions: Vec<Named>,
    #[serde(default)]
    pub(crate) header_union_stacks: Vec<Named>,
    /// Unused: only clone, resubmit and recirculate need them, which are refused where they stand.
    #[serde(default, rename = "field_lists")]
    _field_lists: Vec<IgnoredAny>,
    #[serde(default)]
    pub(crate) errors: Vec<(String, i64)>,
    /// Unused: enum constants are numbers wherever they are used.
    #[serde(default, rename = "enums")]
    _enums: Vec<IgnoredAny>,
    pub(crate) parsers: Vec<Parser>,
    #[serde(default)]
    pub(crate) parse_vsets: Vec<Named>,
    pub(crate) deparsers: Vec<Deparser>,
    #[serde(default)]
    pub(crate) meter_arrays: Vec<Named>,
    #[serde(default)]
    pub(crate) counter_arrays: Vec<CounterArray>,
    #[serde(default)]
    pub(crate) register_arrays: Vec<RegisterArray>,
    #[serde(default)]
    pub(crate) calculations: Vec<Calculation>,
    #[serde(default)]
    pub(crate) learn_lists: Vec<Named>,
    pub(crate) actions: Vec<Action>,
    pub(crate) pipelines: Vec<Pipeline>,
    #[serde(default)]
    pub(crate) checksums: Vec<Checksum>,
    /// Fields that take part in arithmetic; here all fields can.
    #[serde(default, rename = "force_arith")]
    _force_arith: Vec<IgnoredAny>,
    #[serde(default)]
    pub(crate) extern_instances: Vec<Named>,
    /// Other names for fields that this switch finds by their p4c names.
    #[serde(default, rename = "field_aliases")]
    _field_aliases: Vec<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Meta {
    pub(crate) version: (u64, u64),
}

/// Part of the format that is always refused, by its name.
#[derive(Debug, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderType {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    /// `[name, width]` or `[name, width, signed]`; width `"*"` is a varbit.
    pub(crate) fields: Vec<Vec<serde_json::Value>>,
    #[serde(rename = "length_exp")]
    _length_exp: Option<IgnoredAny>,
    #[serde(rename = "max_length")]
    _max_length: Option<IgnoredAny>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) header_type: String,
    pub(crate) metadata: bool,
    #[serde(rename = "pi_omit")]
    _pi_omit: Option<IgnoredAny>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parser {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) init_state: Option<String>,
    pub(crate) parse_states: Vec<ParseState>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ParseState {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) parser_ops: Vec<ParserOp>,
    pub(crate) transition_key: Vec<RawValue>,
    pub(crate) transitions: Vec<Transition>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ParserOp {
    pub(crate) op: String,
    pub(crate) parameters: Vec<serde_json::Value>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Transition {
    /// `default`, `hexstr` or `parse_vset`; old files have none and write the value `default`.
    pub(crate) r#type: Option<String>,
    pub(crate) value: Option<String>,
    pub(crate) mask: Option<String>,
    pub(crate) next_state: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deparser {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) order: Vec<String>,
    #[serde(default)]
    pub(crate) primitives: Vec<Primitive>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CounterArray {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) is_direct: bool,
    pub(crate) size: Option<usize>,
    pub(crate) binding: Option<String>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RegisterArray {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) size: usize,
    pub(crate) bitwidth: u16,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Calculation {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) algo: String,
    pub(crate) input: Vec<RawValue>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checksum {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) target: FieldName,
    pub(crate) r#type: String,
    pub(crate) calculation: String,
    #[serde(default = "yes")]
    pub(crate) verify: bool,
    #[serde(default = "yes")]
    pub(crate) update: bool,
    pub(crate) if_cond: Option<RawValue>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Action {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) runtime_data: Vec<Param>,
    pub(crate) primitives: Vec<Primitive>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Param {
    pub(crate) name: String,
    pub(crate) bitwidth: u16,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Primitive {
    pub(crate) op: String,
    #[serde(default)]
    pub(crate) parameters: Vec<RawValue>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pipeline {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) init_table: Option<String>,
    pub(crate) tables: Vec<Table>,
    #[serde(default)]
    pub(crate) action_profiles: Vec<Named>,
    #[serde(default)]
    pub(crate) conditionals: Vec<Conditional>,
    #[serde(default)]
    pub(crate) action_calls: Vec<Named>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) key: Vec<TableKey>,
    /// Unused: the key fields determine the kind of match.
    #[serde(rename = "match_type")]
    _match_type: String,
    pub(crate) r#type: String,
    #[serde(rename = "action_profile")]
    _action_profile: Option<IgnoredAny>,
    pub(crate) max_size: usize,
    #[serde(default)]
    pub(crate) with_counters: bool,
    #[serde(default)]
    pub(crate) support_timeout: bool,
    pub(crate) direct_meters: Option<String>,
    pub(crate) action_ids: Vec<u32>,
    #[serde(rename = "actions")]
    _actions: Vec<String>,
    pub(crate) base_default_next: Option<String>,
    pub(crate) next_tables: std::collections::BTreeMap<String, Option<String>>,
    pub(crate) default_entry: Option<DefaultEntry>,
    pub(crate) entries: Option<Vec<ConstEntry>>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableKey {
    pub(crate) match_type: String,
    pub(crate) target: serde_json::Value,
    pub(crate) mask: Option<String>,
    pub(crate) name: Option<String>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DefaultEntry {
    pub(crate) action_id: u32,
    #[serde(default)]
    pub(crate) action_const: bool,
    #[serde(default)]
    pub(crate) action_data: Vec<String>,
    #[serde(default)]
    pub(crate) action_entry_const: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConstEntry {
    pub(crate) match_key: Vec<ConstMatch>,
    pub(crate) action_entry: ConstAction,
    #[serde(default)]
    pub(crate) priority: i64,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConstMatch {
    pub(crate) match_type: String,
    /// Hex digits, or a boolean for `valid`.
    pub(crate) key: Option<serde_json::Value>,
    pub(crate) mask: Option<String>,
    pub(crate) prefix_length: Option<u16>,
    pub(crate) start: Option<String>,
    pub(crate) end: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConstAction {
    pub(crate) action_id: u32,
    pub(crate) action_data: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conditional {
    pub(crate) name: String,
    #[serde(rename = "id")]
    _id: u32,
    pub(crate) expression: RawValue,
    pub(crate) true_next: Option<String>,
    pub(crate) false_next: Option<String>,
    #[serde(rename = "source_info")]
    _source_info: Option<IgnoredAny>,
}
