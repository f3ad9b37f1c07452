//! Table entries: messages to the engine's values and back ("TableEntry", "Match Format", "Action Specification").

use fatbtree_p4runtime::bytestring;
use fatbtree_p4runtime::index::{self, MatchFieldInfo};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    self, FieldMatch, TableAction, TableEntry, action::Param, field_match, field_match::FieldMatchType,
    table_action,
};

use super::mapping::TableMap;
use super::refusal::Refusal;
use crate::{ActionCall, ActionRef, Entry, MatchKind, MatchValue, Program};

/// Decodes the key of an entry into `key`, one value per field. `dont_care` stands for fields that are left out.
pub(super) fn decode_key(
    map: &TableMap,
    program: &Program,
    fields: &[FieldMatch],
    key: &mut Vec<MatchValue>,
) -> Result<(), Refusal> {
    let info = &map.info;
    let engine = &program.table_info(map.table).key;
    key.clear();
    // Clients list the fields in order as a rule, exact ones complete: then one pass does it.
    key.extend(info.fields.iter().zip(engine).map(|(field, known)| dont_care(field, known.kind)));
    let mut seen = 0u64;
    for found in fields {
        let Some(field) = info.field_by_id(found.field_id) else {
            let known = list(info.fields.iter().map(|field| (field.id, field.name.as_str())));
            return Err(Refusal::invalid(format!(
                "table `{}`: expected a key field of [{known}], found field id {}",
                info.name, found.field_id
            )));
        };
        let bit = 1u64 << field.position.min(63);
        if seen & bit != 0 {
            return Err(bad_field(info, field, "is given twice"));
        }
        seen |= bit;
        let kind = engine[field.position].kind;
        key[field.position] = decode_field(info, field, kind, found.field_match_type.as_ref())?;
    }
    for field in &info.fields {
        if field.kind == index::MatchKind::Exact && seen & 1u64 << field.position.min(63) == 0 {
            return Err(bad_field(info, field, "is matched exactly and cannot be left out"));
        }
    }
    Ok(())
}

fn dont_care(field: &MatchFieldInfo, engine: MatchKind) -> MatchValue {
    match (field.kind, engine) {
        (index::MatchKind::Exact, _) => MatchValue::Exact(0), // replaced, or the entry is refused
        (index::MatchKind::Range, _) => MatchValue::Range { low: 0, high: ones(field.bitwidth) },
        (index::MatchKind::Optional, _) => MatchValue::Optional(None),
        (index::MatchKind::Lpm, MatchKind::Lpm) => MatchValue::Lpm { value: 0, prefix_len: 0 },
        (index::MatchKind::Lpm | index::MatchKind::Ternary, _) => MatchValue::Ternary { value: 0, mask: 0 },
    }
}

fn decode_field(
    table: &index::TableInfo,
    field: &MatchFieldInfo,
    engine: MatchKind,
    found: Option<&FieldMatchType>,
) -> Result<MatchValue, Refusal> {
    let value = |bytes: &[u8]| -> Result<u64, Refusal> {
        match bytestring::decode(bytes, field.bitwidth) {
            // The engine has no fields beyond 64 bits, and the mapping has checked that the widths agree.
            Ok(value) => Ok(value as u64),
            Err(error) => Err(Refusal::new(
                Code::OutOfRange,
                format!("table `{}`, field `{}`: {error}", table.name, field.name),
            )),
        }
    };
    let bad = |problem: &str| bad_field(table, field, problem);
    match (field.kind, found) {
        (index::MatchKind::Exact, Some(FieldMatchType::Exact(found))) => {
            Ok(MatchValue::Exact(value(&found.value)?))
        }
        (index::MatchKind::Optional, Some(FieldMatchType::Optional(found))) => {
            Ok(MatchValue::Optional(Some(value(&found.value)?)))
        }
        (index::MatchKind::Lpm, Some(FieldMatchType::Lpm(found))) => {
            let prefix = value(&found.value)?;
            let width = field.bitwidth;
            let length = u32::try_from(found.prefix_len).ok().filter(|length| (1..=width).contains(length));
            let Some(length) = length else {
                return Err(bad(&format!(
                    "needs a prefix of 1 to {width} bits, found {}; leave the field out to match everything",
                    found.prefix_len
                )));
            };
            let mask = ones(width) ^ ones(width - length);
            if prefix & !mask != 0 {
                return Err(bad(&format!("has bits set behind its prefix of {length} bits: {prefix:#x}")));
            }
            Ok(match engine {
                MatchKind::Ternary => MatchValue::Ternary { value: prefix, mask },
                _ => MatchValue::Lpm { value: prefix, prefix_len: length as u16 }, // at most 64
            })
        }
        (index::MatchKind::Ternary, Some(FieldMatchType::Ternary(found))) => {
            let (value, mask) = (value(&found.value)?, value(&found.mask)?);
            if mask == 0 {
                return Err(bad("has mask 0; leave the field out to match everything"));
            }
            if value & !mask != 0 {
                return Err(bad(&format!("has bits outside its mask: value {value:#x}, mask {mask:#x}")));
            }
            Ok(MatchValue::Ternary { value, mask })
        }
        (index::MatchKind::Range, Some(FieldMatchType::Range(found))) => {
            let (low, high) = (value(&found.low)?, value(&found.high)?);
            if low > high {
                return Err(bad(&format!("needs low <= high, found {low} > {high}")));
            }
            if low == 0 && high == ones(field.bitwidth) {
                return Err(bad("is the whole range; leave the field out to match everything"));
            }
            Ok(MatchValue::Range { low, high })
        }
        (kind, None) => Err(bad(&format!("is matched {kind}, found no value"))),
        (kind, Some(found)) => {
            let found = match found {
                FieldMatchType::Exact(_) => "exact",
                FieldMatchType::Ternary(_) => "ternary",
                FieldMatchType::Lpm(_) => "LPM",
                FieldMatchType::Range(_) => "range",
                FieldMatchType::Optional(_) => "optional",
                FieldMatchType::Other(_) => "architecture-specific",
            };
            Err(bad(&format!("is matched {kind}, found an {found} value")))
        }
    }
}

/// Place of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Entry,
    Default,
}

/// Decodes an action and its arguments, the latter into `params`.
pub(super) fn decode_action(
    map: &TableMap,
    place: Place,
    action: &TableAction,
    params: &mut Vec<u64>,
) -> Result<ActionRef, Refusal> {
    let info = &map.info;
    let action = match &action.r#type {
        Some(table_action::Type::Action(action)) => action,
        other => {
            return Err(Refusal::invalid(format!(
                "table `{}`: expected an action, for the table has no action profile, found {}",
                info.name,
                if other.is_some() { "a member, group or set of one" } else { "nothing" }
            )));
        }
    };
    let Some(position) = info.actions.iter().position(|known| known.action.id == action.action_id) else {
        let known = list(info.actions.iter().map(|known| (known.action.id, known.action.name.as_str())));
        return Err(Refusal::invalid(format!(
            "table `{}`: expected an action of [{known}], found action id {}",
            info.name, action.action_id
        )));
    };
    let known = &info.actions[position];
    let (allowed, scope) = match place {
        Place::Entry => (known.in_entries, "the default action"),
        Place::Default => (known.as_default, "entries"),
    };
    if !allowed {
        return Err(Refusal::new(
            Code::PermissionDenied,
            format!("table `{}`: action `{}` is for {scope} only", info.name, known.action.name),
        ));
    }
    let expected = &known.action.params;
    params.clear();
    params.resize(expected.len(), 0);
    let mut seen = 0u64;
    for (place, found) in action.params.iter().enumerate() {
        // In order as a rule.
        let position = match expected.get(place) {
            Some(param) if param.id == found.param_id => Some(place),
            _ => expected.iter().position(|param| param.id == found.param_id),
        };
        let Some(position) = position else {
            let known_params = list(expected.iter().map(|param| (param.id, param.name.as_str())));
            return Err(Refusal::invalid(format!(
                "table `{}`, action `{}`: expected parameters [{known_params}], found parameter id {}",
                info.name, known.action.name, found.param_id
            )));
        };
        let param = &expected[position];
        let bit = 1u64 << position.min(63);
        if seen & bit != 0 {
            return Err(bad_param(info, known, param, "is given twice"));
        }
        seen |= bit;
        params[position] = match bytestring::decode(&found.value, param.bitwidth) {
            Ok(value) => value as u64, // the engine has no parameters beyond 64 bits
            Err(error) => {
                let refusal = bad_param(info, known, param, &format!("{error}"));
                return Err(Refusal { code: Code::OutOfRange, ..refusal });
            }
        };
    }
    if action.params.len() < expected.len() {
        let missing = expected.iter().enumerate().find(|(position, _)| seen & 1u64 << position.min(&63) == 0);
        if let Some((_, param)) = missing {
            return Err(bad_param(info, known, param, "is missing"));
        }
    }
    Ok(map.actions[position])
}

/// The key of an entry as a message has it: "don't care" fields left out, values canonical.
pub(super) fn encode_key(map: &TableMap, key: &[MatchValue]) -> Vec<FieldMatch> {
    let encode = |value: u64| bytestring::encode(value);
    let mut fields = Vec::with_capacity(key.len());
    for (field, value) in map.info.fields.iter().zip(key) {
        let full = ones(field.bitwidth);
        let found = match (field.kind, *value) {
            (_, MatchValue::Exact(value)) => {
                FieldMatchType::Exact(field_match::Exact { value: encode(value) })
            }
            (_, MatchValue::Lpm { prefix_len: 0, .. } | MatchValue::Ternary { mask: 0, .. })
            | (_, MatchValue::Optional(None)) => continue,
            (_, MatchValue::Range { low: 0, high }) if high == full => continue,
            (_, MatchValue::Lpm { value, prefix_len }) => {
                FieldMatchType::Lpm(field_match::Lpm { value: encode(value), prefix_len: prefix_len.into() })
            }
            (index::MatchKind::Lpm, MatchValue::Ternary { value, mask }) => {
                FieldMatchType::Lpm(field_match::Lpm {
                    value: encode(value),
                    prefix_len: mask.count_ones() as i32, // at most 64
                })
            }
            (index::MatchKind::Optional, MatchValue::Ternary { value, .. })
            | (_, MatchValue::Optional(Some(value))) => {
                FieldMatchType::Optional(field_match::Optional { value: encode(value) })
            }
            (_, MatchValue::Ternary { value, mask }) => {
                FieldMatchType::Ternary(field_match::Ternary { value: encode(value), mask: encode(mask) })
            }
            (_, MatchValue::Range { low, high }) => {
                FieldMatchType::Range(field_match::Range { low: encode(low), high: encode(high) })
            }
        };
        fields.push(FieldMatch { field_id: field.id, field_match_type: Some(found) });
    }
    fields
}

/// An action as a message has it. `None` for one that P4Info does not list, which the mapping rules out for actions
/// a controller has set.
pub(super) fn encode_action(map: &TableMap, action: ActionRef, params: &[u64]) -> Option<TableAction> {
    let info = &map.info.actions[map.position_of(action)?].action;
    let params = info
        .params
        .iter()
        .zip(params)
        .map(|(param, value)| Param { param_id: param.id, value: bytestring::encode(*value) })
        .collect();
    let action = v1::Action { action_id: info.id, params };
    Some(TableAction { r#type: Some(table_action::Type::Action(action)) })
}

/// The default entry's action. A table whose miss does nothing has `NoAction`, if it lists it.
pub(super) fn encode_default(map: &TableMap, call: Option<&ActionCall>) -> Option<TableAction> {
    match call {
        Some(call) => encode_action(map, call.action, &call.params),
        None => {
            let position = map.info.actions.iter().position(|known| known.action.name == "NoAction")?;
            encode_action(map, map.actions[position], &[])
        }
    }
}

/// An entry as a message has it, without direct resources.
pub(super) fn encode_entry(map: &TableMap, entry: &Entry) -> TableEntry {
    let (controller_metadata, metadata) = unpack_metadata(&entry.metadata);
    #[allow(deprecated, reason = "the old cookie must come back as it was written")]
    TableEntry {
        table_id: map.info.id,
        r#match: encode_key(map, &entry.key),
        action: encode_action(map, entry.action, &entry.params),
        priority: entry.priority,
        controller_metadata,
        metadata: metadata.to_vec(),
        is_const: map.info.is_const,
        ..TableEntry::default()
    }
}

/// Bytes of metadata that are kept for an entry, at most.
const MAX_METADATA: usize = 1024;

/// Both kinds of cookie in the one byte string the engine keeps: empty, or the old 64-bit cookie and then the new one.
///
/// # Errors
/// When it is longer than this switch keeps for an entry.
pub(super) fn pack_metadata(entry: &TableEntry, packed: &mut Vec<u8>) -> Result<(), Refusal> {
    packed.clear();
    if entry.metadata.len() > MAX_METADATA {
        let found = entry.metadata.len();
        let message = format!("expected up to {MAX_METADATA} bytes of metadata for an entry, found {found}");
        return Err(Refusal::new(Code::ResourceExhausted, message));
    }
    #[allow(deprecated, reason = "the old cookie must come back as it was written")]
    let cookie = entry.controller_metadata;
    if cookie != 0 || !entry.metadata.is_empty() {
        packed.extend_from_slice(&cookie.to_be_bytes());
        packed.extend_from_slice(&entry.metadata);
    }
    Ok(())
}

/// The reverse of [`pack_metadata`].
pub(super) fn unpack_metadata(packed: &[u8]) -> (u64, &[u8]) {
    match packed.split_first_chunk::<8>() {
        Some((cookie, metadata)) => (u64::from_be_bytes(*cookie), metadata),
        None => (0, &[]),
    }
}

pub(super) fn ones(bitwidth: u32) -> u64 {
    if bitwidth >= 64 { u64::MAX } else { (1 << bitwidth) - 1 }
}

fn bad_field(table: &index::TableInfo, field: &MatchFieldInfo, problem: &str) -> Refusal {
    Refusal::invalid(format!("table `{}`: field `{}` {problem}", table.name, field.name))
}

fn bad_param(
    table: &index::TableInfo,
    action: &index::TableActionInfo,
    param: &index::ParamInfo,
    problem: &str,
) -> Refusal {
    Refusal::invalid(format!(
        "table `{}`, action `{}`, parameter `{}`: {problem}",
        table.name, action.action.name, param.name
    ))
}

fn list<'a>(names: impl Iterator<Item = (u32, &'a str)>) -> String {
    names.map(|(id, name)| format!("{id} {name}")).collect::<Vec<_>>().join(", ")
}
