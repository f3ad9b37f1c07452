//! A declared table as a compiled program has it: typed keys and actions to P4Runtime entries, and back.

use fatbtree_p4runtime::entry::{EntryBuilder, EntryView};
use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;

use super::TableError;
use super::declare::{Action, Call, Field, Key, Number, Place};

/// A declared table, found in a compiled program.
#[derive(Clone, Debug)]
pub(super) struct Table {
    info: TableInfo,
    /// Index in [`Key::TABLES`].
    place: usize,
    /// Fields in the order of [`Key::FIELDS`].
    fields: Vec<MatchFieldInfo>,
    /// Actions in the order of [`Action::CALLS`], where the table has them.
    actions: Vec<Option<ActionInfo>>,
}

impl Table {
    /// Compares the declaration with the program's table.
    pub(super) fn new<K: Key, A: Action>(info: &TableInfo, place: usize) -> Result<Self, TableError> {
        let differs = |problem: String| TableError::Differs { table: info.name.clone(), problem };
        let mut fields = Vec::with_capacity(K::FIELDS.len());
        for Field { name, kind, width, .. } in K::FIELDS {
            let found = info.field(name)?;
            if found.kind != *kind || bytes(found.bitwidth) != *width {
                let (other, bits) = (found.kind, found.bitwidth);
                return Err(differs(format!(
                    "field `{name}`: expected {kind} match of {width} bytes, found {other} match of {bits} bits"
                )));
            }
            fields.push(found.clone());
        }
        if let Some(other) = info.fields.iter().find(|field| fields.iter().all(|known| known.id != field.id))
        {
            return Err(differs(format!("field `{}` is unknown to this controller", other.name)));
        }
        let mut actions = Vec::with_capacity(A::CALLS.len());
        for (at, Call { name, parameters }) in A::CALLS.iter().enumerate() {
            if !A::is_in(at, place) {
                actions.push(None);
                continue;
            }
            let found = info.action(name)?;
            let of_program = || found.params.iter().map(|param| (param.name.as_str(), bytes(param.bitwidth)));
            if !of_program().eq(parameters.iter().copied()) {
                let found: Vec<_> = of_program().collect();
                return Err(differs(format!(
                    "action `{name}`: expected parameters of so many bytes {parameters:?}, found {found:?}"
                )));
            }
            actions.push(Some(found.clone()));
        }
        Ok(Self { info: info.clone(), place, fields, actions })
    }

    pub(super) fn info(&self) -> &TableInfo {
        &self.info
    }

    /// The P4Runtime entry; without an action it names the key only.
    #[inline]
    pub(super) fn lower<K: Key, A: Action>(
        &self,
        key: K,
        action: Option<A>,
    ) -> Result<TableEntry, TableError> {
        let entry = key.write(Writer { table: self, next: 0, entry: self.info.entry() }).entry;
        let Some(action) = action else { return Ok(entry.build()?) };
        action.call(|at, arguments| Ok(entry.action(self.action(at)?, arguments).build()?))
    }

    /// The entry that sets the table's default action.
    pub(super) fn default_entry<A: Action>(&self, action: A) -> Result<TableEntry, TableError> {
        action.call(|at, arguments| Ok(self.info.default_entry(self.action(at)?, arguments)?))
    }

    /// The key and the action of an entry that was read back.
    pub(super) fn read<K: Key, A: Action>(&self, entry: &TableEntry) -> Result<(K, A), TableError> {
        let view = self.info.view(entry)?;
        let key = K::read(Reader { table: self, next: 0, place: self.place, places: K::TABLES.len(), view })?;
        let action = self.read_action(entry)?.ok_or_else(|| {
            let names: Vec<_> = self.actions.iter().flatten().map(|action| action.name.as_str()).collect();
            self.foreign(format!(
                "expected one of the actions {names:?} with values that the controller writes"
            ))
        })?;
        Ok((key, action))
    }

    /// The action of an entry that was read back; `None` if the controller writes no such action.
    pub(super) fn read_action<A: Action>(&self, entry: &TableEntry) -> Result<Option<A>, TableError> {
        let Some((found, values)) = self.info.view(entry)?.action()? else { return Ok(None) };
        let is = |action: &Option<ActionInfo>| action.as_ref().is_some_and(|action| action.id == found.id);
        let Some(at) = self.actions.iter().position(is) else { return Ok(None) };
        let arguments: Vec<u64> = values.into_iter().filter_map(|value| u64::try_from(value).ok()).collect();
        Ok(A::of(at, &arguments))
    }

    fn action(&self, at: usize) -> Result<&ActionInfo, TableError> {
        self.actions.get(at).and_then(Option::as_ref).ok_or_else(|| {
            self.foreign("expected an action that this table has, found one that it cannot have".to_owned())
        })
    }

    fn foreign(&self, problem: String) -> TableError {
        TableError::Foreign { table: self.info.name.clone(), problem }
    }
}

fn bytes(bits: u32) -> usize {
    bits.div_ceil(8) as usize
}

/// A key on its way into an entry, field by field.
pub(super) struct Writer<'t> {
    table: &'t Table,
    next: usize,
    entry: EntryBuilder<'t>,
}

impl<'t> Writer<'t> {
    #[inline]
    pub(super) fn exact<N: Number<T>, T>(self, value: T) -> Self {
        self.field(|entry, field| entry.exact(field, N::encode(value)))
    }

    #[inline]
    pub(super) fn range<N: Number<T>, T>(self, low: T, high: T) -> Self {
        self.field(|entry, field| entry.range(field, N::encode(low), N::encode(high)))
    }

    #[inline]
    pub(super) fn lpm<N: Number<T>, T>(self, value: T, length: u8) -> Self {
        self.field(|entry, field| entry.lpm(field, N::encode(value).into(), length.into()))
    }

    #[inline]
    pub(super) fn priority(self, priority: u16) -> Self {
        Self { entry: self.entry.priority(priority.into()), ..self }
    }

    #[inline]
    fn field(self, add: impl FnOnce(EntryBuilder<'t>, &'t MatchFieldInfo) -> EntryBuilder<'t>) -> Self {
        let Self { table, next, entry } = self;
        Self { table, next: next + 1, entry: add(entry, &table.fields[next]) }
    }
}

/// An entry that was read back, field by field.
pub(super) struct Reader<'t> {
    table: &'t Table,
    next: usize,
    /// Index of the table among those that the places not yet read leave.
    place: usize,
    places: usize,
    view: EntryView<'t>,
}

impl<'t> Reader<'t> {
    /// The next of the fields that select the table, from the first one.
    pub(super) fn place<P: Place>(&mut self) -> P {
        self.places /= P::COUNT;
        let index = self.place / self.places;
        self.place %= self.places;
        P::at(index)
    }

    /// Index in [`Key::TABLES`] of the table that the entry is in.
    pub(super) fn table(&self) -> usize {
        self.table.place
    }

    pub(super) fn exact<N: Number<T>, T>(&mut self) -> Result<T, TableError> {
        let field = self.field();
        let value = self.view.exact(field)?;
        self.decode::<N, T>(value)
    }

    pub(super) fn range<N: Number<T>, T>(&mut self) -> Result<(T, T), TableError> {
        let field = self.field();
        let (low, high) = self.view.range(field)?;
        Ok((self.decode::<N, T>(low)?, self.decode::<N, T>(high)?))
    }

    pub(super) fn lpm<N: Number<T>, T>(&mut self) -> Result<(T, u8), TableError> {
        let field = self.field();
        let (value, length) = self.view.lpm(field)?;
        Ok((self.decode::<N, T>(value)?, self.decode::<u8, u8>(length.into())?))
    }

    pub(super) fn priority(&self) -> Result<u16, TableError> {
        self.decode::<u16, u16>(self.view.entry().priority.max(0).unsigned_abs().into())
    }

    /// An error that says what is wrong with the entry.
    pub(super) fn foreign(&self, problem: &str) -> TableError {
        self.table.foreign(problem.to_owned())
    }

    fn field(&mut self) -> &'t MatchFieldInfo {
        self.next += 1;
        &self.table.fields[self.next - 1]
    }

    fn decode<N: Number<T>, T>(&self, value: u128) -> Result<T, TableError> {
        let number = u64::try_from(value).ok().and_then(N::decode);
        number.ok_or_else(|| {
            self.table.foreign(format!("value {value:#x} is wider than the controller writes"))
        })
    }
}
