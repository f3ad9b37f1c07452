//! Table entries by name: resolve names once per table, then build entries cheaply.
//!
//! [`EntryBuilder`] checks everything a server would refuse (P4Runtime specification, "TableEntry" and "Match
//! Format"), so that a mistake is found where it is made. [`EntryView`] reads entries back.

use thiserror::Error;

use crate::bytestring::{self, BytestringError};
use crate::index::{ActionInfo, MatchFieldInfo, MatchKind, TableInfo};
use crate::v1::{
    self, Action, Entity, FieldMatch, TableAction, TableEntry, Update, action::Param, entity, field_match,
    field_match::FieldMatchType, table_action, update,
};

/// An entry that does not fit its table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EntryError {
    /// A value, range end or mask does not fit.
    #[error("table `{table}`, {what}: {source}")]
    Value {
        /// The table.
        table: String,
        /// The field or parameter.
        what: String,
        /// The problem.
        source: BytestringError,
    },
    /// Any other problem, in words.
    #[error("table `{table}`: {problem}")]
    Shape {
        /// The table.
        table: String,
        /// The expected and the found value.
        problem: String,
    },
}

impl TableInfo {
    /// Starts an entry of this table.
    ///
    /// ```
    /// # let text = include_str!("../testdata/small.p4info.txtpb");
    /// # let info = fatbtree_p4runtime::P4InfoIndex::from_text(text)?;
    /// use fatbtree_p4runtime::entry::insert;
    ///
    /// let root = info.table("fat_root_0")?; // names: once
    /// let (sub_table, slice) = (root.field("sub_table")?, root.field("slice")?);
    /// let land = root.action("land")?;
    /// let mut updates = Vec::new();
    /// for i in 0..10u64 { // entries: many
    ///     updates.push(insert(
    ///         root.entry()
    ///             .exact(sub_table, 5)
    ///             .range(slice, i * 100, i * 100 + 99)
    ///             .priority(1)
    ///             .action(land, &[0x0001_0000_0000_0400 + i, 1, 7])
    ///             .build()?,
    ///     ));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn entry(&self) -> EntryBuilder<'_> {
        let entry = TableEntry {
            table_id: self.id,
            r#match: Vec::with_capacity(self.fields.len()),
            ..TableEntry::default()
        };
        EntryBuilder { table: self, entry, seen: 0, error: None }
    }

    /// The entry that sets this table's default action; write it with [`modify`].
    pub fn default_entry(&self, action: &ActionInfo, params: &[u64]) -> Result<TableEntry, EntryError> {
        let mut builder = EntryBuilder {
            table: self,
            entry: TableEntry { table_id: self.id, is_default_action: true, ..TableEntry::default() },
            seen: 0,
            error: None,
        };
        builder = builder.action(action, params);
        match builder.error {
            Some(error) => Err(*error),
            None => Ok(builder.entry),
        }
    }

    /// An entity that reads all entries of this table; with `counters`, their direct counters too.
    pub fn read_all(&self, counters: bool) -> Entity {
        let counter_data = (counters && self.direct_counter.is_some()).then(v1::CounterData::default);
        table_entity(TableEntry { table_id: self.id, counter_data, ..TableEntry::default() })
    }

    /// An entity that reads this table's default entry.
    pub fn read_default(&self) -> Entity {
        table_entity(TableEntry { table_id: self.id, is_default_action: true, ..TableEntry::default() })
    }

    /// Looks at an entry of this table.
    pub fn view<'a>(&'a self, entry: &'a TableEntry) -> Result<EntryView<'a>, EntryError> {
        if entry.table_id != self.id {
            let problem =
                format!("expected an entry of table {:#x}, found one of {:#x}", self.id, entry.table_id);
            return Err(shape(self, problem));
        }
        Ok(EntryView { table: self, entry })
    }
}

/// An entry in the making. The first mistake is kept and returned by [`build`](Self::build).
#[derive(Debug)]
#[must_use]
pub struct EntryBuilder<'t> {
    table: &'t TableInfo,
    entry: TableEntry,
    /// Fields given so far, bit by position.
    seen: u64,
    // Boxed: the happy path moves this struct several times.
    error: Option<Box<EntryError>>,
}

impl<'t> EntryBuilder<'t> {
    /// An exact field.
    #[inline]
    pub fn exact(self, field: &MatchFieldInfo, value: u64) -> Self {
        self.exact_wide(field, u128::from(value))
    }

    /// An exact field of up to 128 bits.
    #[inline]
    pub fn exact_wide(mut self, field: &MatchFieldInfo, value: u128) -> Self {
        if self.check(field, MatchKind::Exact) && self.fits(field, value) {
            let value = bytestring::encode(value);
            self.push(field, FieldMatchType::Exact(field_match::Exact { value }));
        }
        self
    }

    /// An optional field; leave the call out for "any value".
    #[inline]
    pub fn optional(mut self, field: &MatchFieldInfo, value: u128) -> Self {
        if self.check(field, MatchKind::Optional) && self.fits(field, value) {
            let value = bytestring::encode(value);
            self.push(field, FieldMatchType::Optional(field_match::Optional { value }));
        }
        self
    }

    /// A range, both ends included.
    #[inline]
    pub fn range(mut self, field: &MatchFieldInfo, low: u64, high: u64) -> Self {
        let (low, high) = (u128::from(low), u128::from(high));
        if !(self.check(field, MatchKind::Range) && self.fits(field, low) && self.fits(field, high)) {
            return self;
        }
        if low > high {
            self.fail(|table| {
                shape(table, format!("field `{}`: expected low <= high, found {low} > {high}", field.name))
            });
        } else if low != 0 || high != ones(field.bitwidth) {
            // The whole range is "don't care", which has to be left out.
            let (low, high) = (bytestring::encode(low), bytestring::encode(high));
            self.push(field, FieldMatchType::Range(field_match::Range { low, high }));
        }
        self
    }

    /// A prefix: the top `prefix_len` bits of `value`; the others must be 0.
    #[inline]
    pub fn lpm(mut self, field: &MatchFieldInfo, value: u128, prefix_len: u32) -> Self {
        if !(self.check(field, MatchKind::Lpm) && self.fits(field, value)) {
            return self;
        }
        let outside =
            field.bitwidth.checked_sub(prefix_len).map(|host| if host == 0 { 0 } else { value & ones(host) });
        match outside {
            None => self.fail(|table| {
                let (name, bits) = (&field.name, field.bitwidth);
                shape(
                    table,
                    format!("field `{name}`: expected a prefix of at most {bits} bits, found {prefix_len}"),
                )
            }),
            Some(0) if prefix_len == 0 => {} // "don't care", left out
            Some(0) => {
                let value = bytestring::encode(value);
                let prefix_len = prefix_len as i32; // at most the bitwidth, which came from an i32
                self.push(field, FieldMatchType::Lpm(field_match::Lpm { value, prefix_len }));
            }
            Some(bits) => self.fail(|table| {
                let name = &field.name;
                shape(
                    table,
                    format!("field `{name}`: expected zeros after {prefix_len} bits, found {bits:#x}"),
                )
            }),
        }
        self
    }

    /// A value under a mask; bits outside the mask must be 0.
    #[inline]
    pub fn ternary(mut self, field: &MatchFieldInfo, value: u128, mask: u128) -> Self {
        if !(self.check(field, MatchKind::Ternary) && self.fits(field, value) && self.fits(field, mask)) {
            return self;
        }
        if value & !mask != 0 {
            self.fail(|table| {
                let name = &field.name;
                shape(table, format!("field `{name}`: value {value:#x} has bits outside its mask {mask:#x}"))
            });
        } else if mask != 0 {
            let (value, mask) = (bytestring::encode(value), bytestring::encode(mask));
            self.push(field, FieldMatchType::Ternary(field_match::Ternary { value, mask }));
        }
        self
    }

    /// The priority; higher wins. Needed exactly when [`TableInfo::needs_priority`] says so.
    #[inline]
    pub fn priority(mut self, priority: i32) -> Self {
        self.entry.priority = priority;
        self
    }

    /// The action and its arguments in order of declaration.
    #[inline]
    pub fn action(mut self, action: &ActionInfo, params: &[u64]) -> Self {
        if action.params.len() != params.len() {
            self.fail(|table| {
                let (name, expected, found) = (&action.name, action.params.len(), params.len());
                shape(table, format!("action `{name}`: expected {expected} arguments, found {found}"))
            });
            return self;
        }
        let mut list = Vec::with_capacity(params.len());
        for (param, value) in action.params.iter().zip(params) {
            if param.bitwidth < 64 && *value >> param.bitwidth != 0 {
                let needed = u64::from(64 - value.leading_zeros());
                self.fail(|table| EntryError::Value {
                    table: table.name.clone(),
                    what: format!("parameter `{}` of action `{}`", param.name, action.name),
                    source: BytestringError::TooWide { bitwidth: param.bitwidth, needed },
                });
                return self;
            }
            list.push(Param { param_id: param.id, value: bytestring::encode(*value) });
        }
        let action = Action { action_id: action.id, params: list };
        self.entry.action = Some(TableAction { r#type: Some(table_action::Type::Action(action)) });
        self
    }

    /// The finished entry. Without an action it is good for [`delete`] and as a filter for reading.
    #[inline]
    pub fn build(mut self) -> Result<TableEntry, EntryError> {
        if self.error.is_none() {
            self.check_complete();
        }
        match self.error {
            Some(error) => Err(*error),
            None => Ok(self.entry),
        }
    }

    #[inline]
    fn check_complete(&mut self) {
        let table = self.table;
        if let Some(missing) =
            table.fields.iter().find(|f| f.kind == MatchKind::Exact && self.seen & bit(f.position) == 0)
        {
            self.fail(|table| shape(table, format!("exact field `{}` has no value", missing.name)));
        } else if table.needs_priority != (self.entry.priority > 0) || self.entry.priority < 0 {
            let found = self.entry.priority;
            let expected =
                if table.needs_priority { "above 0" } else { "of 0, for all its fields are exact or LPM" };
            self.fail(|table| shape(table, format!("expected a priority {expected}, found {found}")));
        }
    }

    #[inline]
    fn push(&mut self, field: &MatchFieldInfo, value: FieldMatchType) {
        self.entry.r#match.push(FieldMatch { field_id: field.id, field_match_type: Some(value) });
    }

    #[inline]
    fn check(&mut self, field: &MatchFieldInfo, kind: MatchKind) -> bool {
        let bit = bit(field.position);
        if field.table_id == self.table.id && field.kind == kind && self.seen & bit == 0 {
            self.seen |= bit;
            return true;
        }
        let seen = self.seen & bit != 0;
        self.fail(|table| {
            let name = &field.name;
            shape(
                table,
                if field.table_id != table.id {
                    format!("field `{name}` belongs to table {:#x}, not to {:#x}", field.table_id, table.id)
                } else if field.kind != kind {
                    format!("field `{name}`: expected {} match, found {kind}", field.kind)
                } else {
                    debug_assert!(seen);
                    format!("field `{name}` is given twice")
                },
            )
        });
        false
    }

    #[inline]
    fn fits(&mut self, field: &MatchFieldInfo, value: u128) -> bool {
        if value <= ones(field.bitwidth) {
            return true;
        }
        let needed = u64::from(128 - value.leading_zeros());
        self.fail(|table| EntryError::Value {
            table: table.name.clone(),
            what: format!("field `{}`", field.name),
            source: BytestringError::TooWide { bitwidth: field.bitwidth, needed },
        });
        false
    }

    #[cold]
    fn fail(&mut self, error: impl FnOnce(&'t TableInfo) -> EntryError) {
        if self.error.is_none() {
            self.error = Some(Box::new(error(self.table)));
        }
    }
}

/// Bit of a key field in a set; P4 tables have far fewer than 64 fields, the rest would share the last bit.
fn bit(position: usize) -> u64 {
    1 << position.min(63)
}

fn ones(bitwidth: u32) -> u128 {
    if bitwidth >= 128 { u128::MAX } else { (1 << bitwidth) - 1 }
}

fn shape(table: &TableInfo, problem: String) -> EntryError {
    EntryError::Shape { table: table.name.clone(), problem }
}

/// An entry read back, by fields and actions of its table.
#[derive(Debug, Clone, Copy)]
pub struct EntryView<'a> {
    table: &'a TableInfo,
    entry: &'a TableEntry,
}

impl<'a> EntryView<'a> {
    /// The message behind the view.
    pub fn entry(&self) -> &'a TableEntry {
        self.entry
    }

    /// The value of an exact field.
    pub fn exact(&self, field: &MatchFieldInfo) -> Result<u128, EntryError> {
        match self.find(field) {
            Some(FieldMatchType::Exact(found)) => self.value(field, &found.value),
            found => Err(self.unexpected(field, found)),
        }
    }

    /// The value of an optional field, if it has one.
    pub fn optional(&self, field: &MatchFieldInfo) -> Result<Option<u128>, EntryError> {
        match self.find(field) {
            None => Ok(None),
            Some(FieldMatchType::Optional(found)) => self.value(field, &found.value).map(Some),
            found => Err(self.unexpected(field, found)),
        }
    }

    /// The ends of a range field, both included.
    pub fn range(&self, field: &MatchFieldInfo) -> Result<(u128, u128), EntryError> {
        match self.find(field) {
            None => Ok((0, ones(field.bitwidth))),
            Some(FieldMatchType::Range(found)) => {
                Ok((self.value(field, &found.low)?, self.value(field, &found.high)?))
            }
            found => Err(self.unexpected(field, found)),
        }
    }

    /// Value and length of a prefix field.
    pub fn lpm(&self, field: &MatchFieldInfo) -> Result<(u128, u32), EntryError> {
        match self.find(field) {
            None => Ok((0, 0)),
            Some(FieldMatchType::Lpm(found)) => {
                Ok((self.value(field, &found.value)?, u32::try_from(found.prefix_len).unwrap_or(0)))
            }
            found => Err(self.unexpected(field, found)),
        }
    }

    /// Value and mask of a ternary field.
    pub fn ternary(&self, field: &MatchFieldInfo) -> Result<(u128, u128), EntryError> {
        match self.find(field) {
            None => Ok((0, 0)),
            Some(FieldMatchType::Ternary(found)) => {
                Ok((self.value(field, &found.value)?, self.value(field, &found.mask)?))
            }
            found => Err(self.unexpected(field, found)),
        }
    }

    /// The action and its arguments in order of declaration; `None` where the entry has none.
    pub fn action(&self) -> Result<Option<(&'a ActionInfo, Vec<u128>)>, EntryError> {
        let table = self.table;
        let action = match self.entry.action.as_ref().and_then(|action| action.r#type.as_ref()) {
            None => return Ok(None),
            Some(table_action::Type::Action(action)) => action,
            Some(other) => return Err(shape(table, format!("expected a direct action, found {other:?}"))),
        };
        let info = table.action_by_id(action.action_id).map(|entry| &entry.action).ok_or_else(|| {
            shape(table, format!("action {:#x} is not one of the table's actions", action.action_id))
        })?;
        let params = info.params.iter().map(|param| {
            let what = || format!("parameter `{}` of action `{}`", param.name, info.name);
            let found = action
                .params
                .iter()
                .find(|found| found.param_id == param.id)
                .ok_or_else(|| shape(table, format!("{} is missing", what())))?;
            bytestring::decode(&found.value, param.bitwidth).map_err(|source| EntryError::Value {
                table: table.name.clone(),
                what: what(),
                source,
            })
        });
        Ok(Some((info, params.collect::<Result<_, _>>()?)))
    }

    /// Direct counter, if it was asked for: packets and bytes.
    pub fn counter(&self) -> Option<(u64, u64)> {
        self.entry.counter_data.as_ref().map(counter_values)
    }

    fn find(&self, field: &MatchFieldInfo) -> Option<&'a FieldMatchType> {
        self.entry.r#match.iter().find(|found| found.field_id == field.id)?.field_match_type.as_ref()
    }

    fn value(&self, field: &MatchFieldInfo, bytes: &[u8]) -> Result<u128, EntryError> {
        bytestring::decode(bytes, field.bitwidth).map_err(|source| EntryError::Value {
            table: self.table.name.clone(),
            what: format!("field `{}`", field.name),
            source,
        })
    }

    fn unexpected(&self, field: &MatchFieldInfo, found: Option<&FieldMatchType>) -> EntryError {
        let (name, kind) = (&field.name, field.kind);
        shape(
            self.table,
            format!("field `{name}`, which is matched {kind}: asked for another kind, or found {found:?}"),
        )
    }
}

/// Packets and bytes of a counter.
pub fn counter_values(data: &v1::CounterData) -> (u64, u64) {
    // Signed only because the specification says int64; servers count up from 0.
    (data.packet_count.max(0).unsigned_abs(), data.byte_count.max(0).unsigned_abs())
}

/// Wraps a table entry as an entity, for reading or writing.
#[inline]
pub fn table_entity(entry: TableEntry) -> Entity {
    Entity { entity: Some(entity::Entity::TableEntry(entry)) }
}

/// An update that inserts a table entry.
#[inline]
pub fn insert(entry: TableEntry) -> Update {
    update(update::Type::Insert, entry)
}

/// An update that modifies a table entry, or sets a default action.
#[inline]
pub fn modify(entry: TableEntry) -> Update {
    update(update::Type::Modify, entry)
}

/// An update that deletes a table entry; only its key counts.
#[inline]
pub fn delete(entry: TableEntry) -> Update {
    update(update::Type::Delete, entry)
}

#[inline]
fn update(kind: update::Type, entry: TableEntry) -> Update {
    Update { r#type: kind.into(), entity: Some(table_entity(entry)) }
}
