//! P4Info, indexed: the objects of a program, by name and by id.

use std::collections::BTreeMap;

use crate::config::{self, P4Info, action_ref::Scope, counter_spec::Unit, match_field};
use crate::names::{LookupError, find, has_suffix};
use crate::p4info::{self, P4InfoError};

/// Kind of match of a key field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatchKind {
    /// Equality.
    Exact,
    /// Longest prefix.
    Lpm,
    /// Equality under a mask.
    Ternary,
    /// Between two ends, both included.
    Range,
    /// Equality, or any value.
    Optional,
}

impl MatchKind {
    /// Whether a field of this kind makes the table's entries need a priority
    /// (P4Runtime specification, "TableEntry").
    pub const fn needs_priority(self) -> bool {
        matches!(self, Self::Ternary | Self::Range | Self::Optional)
    }
}

impl std::fmt::Display for MatchKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Lpm => "LPM",
            Self::Ternary => "ternary",
            Self::Range => "range",
            Self::Optional => "optional",
        })
    }
}

/// One field of a table's key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchFieldInfo {
    /// Id, unique in the table.
    pub id: u32,
    /// Name as the P4 source has it, or as `@name` gives it.
    pub name: String,
    /// Width, bits.
    pub bitwidth: u32,
    /// Kind of match.
    pub kind: MatchKind,
    /// Place in the key, from 0.
    pub position: usize,
    /// The table's id, so that a field of one table is not used for another.
    pub table_id: u32,
}

/// One parameter of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParamInfo {
    /// Id, unique in the action.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Width, bits.
    pub bitwidth: u32,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActionInfo {
    /// Id.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// Alias.
    pub alias: String,
    /// Parameters the control plane gives, in order of declaration.
    pub params: Vec<ParamInfo>,
}

impl ActionInfo {
    /// The parameter called `name`.
    pub fn param(&self, name: &str) -> Result<&ParamInfo, LookupError> {
        let place = || format!("action `{}`", self.name);
        find("parameter", place, self.params.iter(), |param| (param.name.as_str(), ""), name)
    }
}

/// An action as a table may use it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableActionInfo {
    /// The action.
    pub action: ActionInfo,
    /// Whether entries may use it.
    pub in_entries: bool,
    /// Whether it may be the default action.
    pub as_default: bool,
}

/// A direct counter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectCounterInfo {
    /// Id.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// Unit of its counts.
    pub unit: Unit,
}

/// An array of counters.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterInfo {
    /// Id.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// Alias.
    pub alias: String,
    /// Unit of its counts.
    pub unit: Unit,
    /// Cells.
    pub size: u64,
}

/// A table.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TableInfo {
    /// Id.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// Alias.
    pub alias: String,
    /// The key, in order of declaration.
    pub fields: Vec<MatchFieldInfo>,
    /// The actions, in order of declaration.
    pub actions: Vec<TableActionInfo>,
    /// Entries the program asks for.
    pub size: u64,
    /// The default action, where it is constant.
    pub const_default_action: Option<u32>,
    /// The default action the program starts with, where P4Info tells.
    pub initial_default_action: Option<config::TableActionCall>,
    /// Whether the table has `const entries`: only its default action may change.
    pub is_const: bool,
    /// Whether the program puts entries in.
    pub has_initial_entries: bool,
    /// Id of an action profile the entries point into, instead of having actions of their own.
    pub implementation: Option<u32>,
    /// The direct counter.
    pub direct_counter: Option<DirectCounterInfo>,
    /// Id of the direct meter.
    pub direct_meter: Option<u32>,
    /// Whether entries must have a priority above 0.
    pub needs_priority: bool,
}

impl TableInfo {
    /// The key field called `name` (exact or dotted suffix: `dst_addr` finds `hdr.ipv4.dst_addr`).
    pub fn field(&self, name: &str) -> Result<&MatchFieldInfo, LookupError> {
        let place = || format!("the key of table `{}`", self.name);
        find("field", place, self.fields.iter(), |field| (field.name.as_str(), ""), name)
    }

    /// The key field with this id.
    pub fn field_by_id(&self, id: u32) -> Option<&MatchFieldInfo> {
        // p4c numbers fields from 1 in order: try that place first.
        let guess = self.fields.get((id as usize).wrapping_sub(1)).filter(|field| field.id == id);
        guess.or_else(|| self.fields.iter().find(|field| field.id == id))
    }

    /// The action of this table called `name`.
    ///
    /// P4 programs number the copies of an action that each table has: where no action is called `land`, the only one
    /// called `land_` and a number is meant.
    pub fn action(&self, name: &str) -> Result<&ActionInfo, LookupError> {
        let place = || format!("table `{}`", self.name);
        let actions = self.actions.iter();
        let found = find(
            "action",
            place,
            actions,
            |entry| (entry.action.name.as_str(), entry.action.alias.as_str()),
            name,
        );
        let numbered = |entry: &&TableActionInfo| {
            let stem = entry.action.name.trim_end_matches(|c: char| c.is_ascii_digit());
            stem.len() < entry.action.name.len()
                && stem.strip_suffix('_').is_some_and(|stem| has_suffix(stem, name))
        };
        match found {
            Err(LookupError::NotFound { .. }) => {
                let mut candidates = self.actions.iter().filter(numbered);
                match (candidates.next(), candidates.next()) {
                    (Some(only), None) => Ok(&only.action),
                    _ => found.map(|entry| &entry.action),
                }
            }
            found => found.map(|entry| &entry.action),
        }
    }

    /// The action of this table with this id.
    pub fn action_by_id(&self, id: u32) -> Option<&TableActionInfo> {
        self.actions.iter().find(|entry| entry.action.id == id)
    }
}

/// A program's P4Info, checked and indexed.
///
/// ```
/// # let text = include_str!("../testdata/small.p4info.txtpb");
/// let index = fatbtree_p4runtime::P4InfoIndex::from_text(text)?;
/// let table = index.table("node_set_a.child")?; // finds `ingress.node_set_a.child`
/// assert_eq!(table.fields[2].bitwidth, 16);
/// assert_eq!(table.action("descend_to")?.params[0].name, "address");
/// assert!(index.table("child").is_err()); // node_set_a's or node_set_b's?
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct P4InfoIndex {
    info: P4Info,
    tables: Vec<TableInfo>,
    table_by_id: BTreeMap<u32, usize>,
    actions: Vec<ActionInfo>,
    counters: Vec<CounterInfo>,
}

impl P4InfoIndex {
    /// Parses P4Info text and indexes it.
    pub fn from_text(text: &str) -> Result<Self, P4InfoError> {
        Self::new(p4info::parse(text)?)
    }

    /// Checks P4Info and indexes it.
    pub fn new(info: P4Info) -> Result<Self, P4InfoError> {
        let mut actions = Vec::with_capacity(info.actions.len());
        for action in &info.actions {
            let preamble = preamble("action", action.preamble.as_ref())?;
            let params = action
                .params
                .iter()
                .map(|param| {
                    let owner = || format!("parameter `{}` of action `{}`", param.name, preamble.name);
                    Ok(ParamInfo {
                        id: param.id,
                        name: param.name.clone(),
                        bitwidth: width(param.bitwidth, owner)?,
                    })
                })
                .collect::<Result<_, P4InfoError>>()?;
            let (name, alias) = (preamble.name.clone(), preamble.alias.clone());
            actions.push(ActionInfo { id: preamble.id, name, alias, params });
        }
        let action_by_id = unique("action", actions.iter().map(|action| (action.id, &action.name)))?;

        let mut tables = Vec::with_capacity(info.tables.len());
        for table in &info.tables {
            tables.push(index_table(&info, table, &actions, &action_by_id)?);
        }
        let table_by_id = unique("table", tables.iter().map(|table| (table.id, &table.name)))?;

        let mut counters = Vec::with_capacity(info.counters.len());
        for counter in &info.counters {
            let preamble = preamble("counter", counter.preamble.as_ref())?;
            counters.push(CounterInfo {
                id: preamble.id,
                name: preamble.name.clone(),
                alias: preamble.alias.clone(),
                unit: counter.spec.as_ref().map_or(Unit::Unspecified, config::CounterSpec::unit),
                size: u64::try_from(counter.size).unwrap_or(0),
            });
        }
        unique("counter", counters.iter().map(|counter| (counter.id, &counter.name)))?;
        Ok(Self { info, tables, table_by_id, actions, counters })
    }

    /// The P4Info this was made from.
    pub fn p4info(&self) -> &P4Info {
        &self.info
    }

    /// All tables, in order of P4Info.
    pub fn tables(&self) -> &[TableInfo] {
        &self.tables
    }

    /// All actions, in order of P4Info.
    pub fn actions(&self) -> &[ActionInfo] {
        &self.actions
    }

    /// All counter arrays, in order of P4Info.
    pub fn counters(&self) -> &[CounterInfo] {
        &self.counters
    }

    /// The table called `name`: full name, alias, or a dotted suffix that fits only one.
    pub fn table(&self, name: &str) -> Result<&TableInfo, LookupError> {
        find("table", program, self.tables.iter(), |table| (table.name.as_str(), table.alias.as_str()), name)
    }

    /// Whether [`table`](Self::table) finds exactly one table by `name`.
    pub fn has_table(&self, name: &str) -> bool {
        self.table(name).is_ok()
    }

    /// The action called `name`.
    pub fn action(&self, name: &str) -> Result<&ActionInfo, LookupError> {
        find(
            "action",
            program,
            self.actions.iter(),
            |action| (action.name.as_str(), action.alias.as_str()),
            name,
        )
    }

    /// The counter array called `name`.
    pub fn counter(&self, name: &str) -> Result<&CounterInfo, LookupError> {
        find(
            "counter",
            program,
            self.counters.iter(),
            |counter| (counter.name.as_str(), counter.alias.as_str()),
            name,
        )
    }

    /// The table with this id.
    pub fn table_by_id(&self, id: u32) -> Option<&TableInfo> {
        self.position_of_table(id).map(|position| &self.tables[position])
    }

    /// Place in [`tables`](Self::tables) of the table with this id.
    pub fn position_of_table(&self, id: u32) -> Option<usize> {
        self.table_by_id.get(&id).copied()
    }

    /// The counter array with this id.
    pub fn counter_by_id(&self, id: u32) -> Option<&CounterInfo> {
        self.counters.iter().find(|counter| counter.id == id)
    }
}

fn program() -> String {
    "the program".to_owned()
}

fn index_table(
    info: &P4Info,
    table: &config::Table,
    actions: &[ActionInfo],
    action_by_id: &BTreeMap<u32, usize>,
) -> Result<TableInfo, P4InfoError> {
    let preamble = preamble("table", table.preamble.as_ref())?;
    let name = &preamble.name;
    let mut fields = Vec::with_capacity(table.match_fields.len());
    for (position, field) in table.match_fields.iter().enumerate() {
        let owner = || format!("key field `{}` of table `{name}`", field.name);
        fields.push(MatchFieldInfo {
            id: field.id,
            name: field.name.clone(),
            bitwidth: width(field.bitwidth, owner)?,
            kind: kind(field).ok_or_else(|| {
                P4InfoError::Incomplete(format!(
                    "{} has no match type of P4Runtime (exact, LPM, ternary, range, optional)",
                    owner()
                ))
            })?,
            position,
            table_id: preamble.id,
        });
    }
    unique("key field", fields.iter().map(|field| (field.id, &field.name)))?;
    let table_actions = table
        .action_refs
        .iter()
        .map(|reference| {
            let position = action_by_id.get(&reference.id).ok_or_else(|| {
                P4InfoError::Inconsistent(format!(
                    "table `{name}` may use action {}, but there is no such action",
                    reference.id
                ))
            })?;
            let scope = reference.scope();
            Ok(TableActionInfo {
                action: actions[*position].clone(),
                in_entries: matches!(scope, Scope::TableAndDefault | Scope::TableOnly),
                as_default: matches!(scope, Scope::TableAndDefault | Scope::DefaultOnly),
            })
        })
        .collect::<Result<Vec<_>, P4InfoError>>()?;
    let counter = info.direct_counters.iter().find_map(|counter| {
        let preamble = counter.preamble.as_ref()?;
        table.direct_resource_ids.contains(&preamble.id).then(|| DirectCounterInfo {
            id: preamble.id,
            name: preamble.name.clone(),
            unit: counter.spec.as_ref().map_or(Unit::Unspecified, config::CounterSpec::unit),
        })
    });
    let meter = info.direct_meters.iter().find_map(|meter| {
        let id = meter.preamble.as_ref()?.id;
        table.direct_resource_ids.contains(&id).then_some(id)
    });
    Ok(TableInfo {
        id: preamble.id,
        name: name.clone(),
        alias: preamble.alias.clone(),
        needs_priority: fields.iter().any(|field| field.kind.needs_priority()),
        fields,
        actions: table_actions,
        size: u64::try_from(table.size).unwrap_or(0),
        const_default_action: Some(table.const_default_action_id).filter(|id| *id != 0),
        initial_default_action: table.initial_default_action.clone(),
        is_const: table.is_const_table,
        has_initial_entries: table.has_initial_entries,
        implementation: Some(table.implementation_id).filter(|id| *id != 0),
        direct_counter: counter,
        direct_meter: meter,
    })
}

fn preamble<'a>(
    kind: &str,
    preamble: Option<&'a config::Preamble>,
) -> Result<&'a config::Preamble, P4InfoError> {
    match preamble {
        Some(found) if found.id != 0 && !found.name.is_empty() => Ok(found),
        found => Err(P4InfoError::Incomplete(format!("a {kind} needs an id and a name, found {found:?}"))),
    }
}

fn width(bitwidth: i32, owner: impl Fn() -> String) -> Result<u32, P4InfoError> {
    u32::try_from(bitwidth).ok().filter(|bits| *bits > 0).ok_or_else(|| {
        P4InfoError::Incomplete(format!("{} has a width of {bitwidth} bits, expected 1 or more", owner()))
    })
}

fn kind(field: &config::MatchField) -> Option<MatchKind> {
    use match_field::{Match, MatchType};
    let Some(Match::MatchType(number)) = field.r#match else { return None };
    Some(match MatchType::try_from(number).ok()? {
        MatchType::Exact => MatchKind::Exact,
        MatchType::Lpm => MatchKind::Lpm,
        MatchType::Ternary => MatchKind::Ternary,
        MatchType::Range => MatchKind::Range,
        MatchType::Optional => MatchKind::Optional,
        MatchType::Unspecified => return None,
    })
}

fn unique<'a>(
    kind: &str,
    objects: impl Iterator<Item = (u32, &'a String)>,
) -> Result<BTreeMap<u32, usize>, P4InfoError> {
    let mut by_id: BTreeMap<u32, (usize, &String)> = BTreeMap::new();
    for (position, (id, name)) in objects.enumerate() {
        if let Some((_, other)) = by_id.insert(id, (position, name)) {
            return Err(P4InfoError::Inconsistent(format!(
                "{kind}s `{other}` and `{name}` both have id {id}"
            )));
        }
    }
    Ok(by_id.into_iter().map(|(id, (position, _))| (id, position)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdata::P4INFO;

    fn index() -> P4InfoIndex {
        P4InfoIndex::from_text(P4INFO).expect("the test program is sound")
    }

    #[test]
    fn names_resolve_by_suffix() {
        let index = index();
        let full = index.table("ingress.node_set_a.child").expect("full name");
        assert_eq!(index.table("node_set_a.child").expect("suffix").id, full.id);
        let field =
            index.table("ipv4_route").and_then(|table| table.field("dst_addr")).expect("field suffix");
        assert_eq!((field.bitwidth, field.kind), (32, MatchKind::Lpm));
        // A Tofino program has one more component in front.
        let tofino = P4InfoIndex::from_text(&P4INFO.replace("\"ingress.", "\"pipe.ingress.")).expect("sound");
        assert_eq!(tofino.table("node_set_a.child").expect("suffix").name, "pipe.ingress.node_set_a.child");
    }

    #[test]
    fn ambiguity_lists_the_candidates() {
        let Err(LookupError::Ambiguous { candidates, .. }) = index().table("child").map(|table| table.id)
        else {
            panic!("`child` is in two node sets");
        };
        assert_eq!(candidates, ["ingress.node_set_a.child", "ingress.node_set_b.child"]);
        let missing = index().table("fat_root_9").expect_err("no such table").to_string();
        assert!(missing.contains("fat_root_9") && missing.contains("ingress.fat_root_0"), "{missing}");
    }

    #[test]
    fn tables_know_their_rules() {
        let index = index();
        let root = index.table("fat_root_0").expect("there");
        assert!(root.needs_priority && root.direct_counter.is_some());
        assert_eq!(root.size, 1024);
        let child = index.table("node_set_b.child").expect("there");
        assert!(!child.needs_priority);
        assert_eq!(child.const_default_action, Some(index.action("NoAction").expect("there").id));
        let no_action = child.action_by_id(child.const_default_action.expect("const")).expect("listed");
        assert!(no_action.as_default && !no_action.in_entries);
        assert!(index.table("fixed").expect("there").is_const);
        assert_eq!(index.counter("drops").expect("there").size, 16);
    }

    #[test]
    fn numbered_copies_of_an_action() {
        let numbered =
            P4INFO.replace("ingress.land\"", "ingress.land_0\"").replace("alias: \"land\"", "alias: \"l\"");
        let index = P4InfoIndex::from_text(&numbered).expect("sound");
        let root = index.table("fat_root_0").expect("there");
        assert_eq!(root.action("land").expect("the only land_<n>").name, "ingress.land_0");
        assert_eq!(root.action("land_0").expect("exact").name, "ingress.land_0");
        assert!(root.action("lan").is_err() && root.action("land_1").is_err());
    }

    #[test]
    fn contradictions_are_refused() {
        let twice = P4INFO.replace("id: 33554434\n", "id: 33554433\n");
        let error = P4InfoIndex::from_text(&twice).expect_err("an id twice");
        assert!(matches!(&error, P4InfoError::Inconsistent(text) if text.contains("33554433")), "{error}");
        let missing = P4INFO.replace("bitwidth: 9\n", "");
        assert!(matches!(P4InfoIndex::from_text(&missing), Err(P4InfoError::Incomplete(_))));
    }
}
