//! Control software's operations on a pipeline: entries, default actions, counters, registers.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

use crate::entry::{
    ActionCall, ActionRef, CounterData, CounterRef, Entry, MatchKind, MatchValue, RegisterRef, TableRef,
};
use crate::error::TableError;
use crate::machine::State;
use crate::pipeline::Pipeline;
use crate::program::{KeyField, Program, TableInfo, TableKind};
use crate::table::contents::Contents;
use crate::table::ones;
use crate::table::store::Pair;

/// State of a new pipeline: const entries and initial default actions.
pub(crate) fn initial_state(program: &Program) -> State {
    let code = &program.code;
    let tables = code.tables.iter().zip(&program.tables).zip(&code.entries);
    let tables = tables.map(|((lowered, info), entries)| {
        let mut contents = Contents::new(lowered, info.max_size, initial_default(info));
        for (pairs, priority, call) in entries {
            contents.insert(&lowered.kind, pairs, *priority, &words_of(info, call.action, &call.params));
        }
        contents
    });
    State {
        tables: tables.collect(),
        counters: program.counters.iter().map(|c| vec![[0; 2]; c.size]).collect(),
        registers: program.registers.iter().map(|r| vec![0; r.size]).collect(),
        random: SplitMix64::seed_from_u64(0),
    }
}

fn initial_default(info: &TableInfo) -> Vec<u64> {
    match &info.initial_default {
        Some(call) => words_of(info, call.action, &call.params),
        None => vec![0],
    }
}

/// An entry's words: position of the action in the table's list + 1, then parameters.
fn words_of(info: &TableInfo, action: ActionRef, params: &[u64]) -> Vec<u64> {
    let position = info.actions.iter().position(|&a| a == action).map_or(0, |at| at as u64 + 1);
    [&[position], params].concat()
}

impl Pipeline {
    /// Adds an entry. Its direct counter starts at zero.
    ///
    /// # Errors
    /// [`TableError`]; nothing has changed then.
    ///
    /// # Panics
    /// Here and below: if a reference came from another program.
    pub fn insert(&mut self, table: TableRef, entry: &Entry) -> Result<(), TableError> {
        let info = self.program.table_info(table);
        self.refuse_const(table)?;
        let pairs = check_key(info, &entry.key, entry.priority)?;
        let words = self.check_action(info, entry.action, &entry.params)?;
        if self.find(table, &pairs, entry.priority).is_some() {
            return Err(TableError::Duplicate { table: info.name.clone() });
        }
        if self.len(table) >= info.max_size || info.key.is_empty() {
            return Err(TableError::Full { table: info.name.clone(), size: info.max_size });
        }
        let kind = self.program.kind(table);
        for pipe in self.pipes.iter_mut() {
            pipe.state.tables[table.index()].insert(kind, &pairs, entry.priority, &words);
        }
        if !entry.metadata.is_empty() {
            self.metadata.insert((table.0, pairs, entry.priority), entry.metadata.clone());
        }
        Ok(())
    }

    /// Replaces the action, parameters and metadata of the entry with this key and priority. Its direct
    /// counter goes on counting.
    ///
    /// # Errors
    /// [`TableError`]; nothing has changed then.
    pub fn modify(&mut self, table: TableRef, entry: &Entry) -> Result<(), TableError> {
        let info = self.program.table_info(table);
        self.refuse_const(table)?;
        let pairs = check_key(info, &entry.key, entry.priority)?;
        let words = self.check_action(info, entry.action, &entry.params)?;
        self.in_every_pipe(table, &pairs, entry.priority, |contents, _, row| contents.write(row, &words))?;
        let key = (table.0, pairs, entry.priority);
        if entry.metadata.is_empty() {
            self.metadata.remove(&key);
        } else {
            self.metadata.insert(key, entry.metadata.clone());
        }
        Ok(())
    }

    /// Removes the entry with this key and priority.
    ///
    /// # Errors
    /// [`TableError`]; nothing has changed then.
    pub fn delete(&mut self, table: TableRef, key: &[MatchValue], priority: i32) -> Result<(), TableError> {
        let info = self.program.table_info(table);
        self.refuse_const(table)?;
        let pairs = check_key(info, key, priority)?;
        self.in_every_pipe(table, &pairs, priority, Contents::remove)?;
        self.metadata.remove(&(table.0, pairs, priority));
        Ok(())
    }

    /// Removes all entries of a table.
    ///
    /// # Errors
    /// [`TableError::ConstTable`].
    pub fn clear_table(&mut self, table: TableRef) -> Result<(), TableError> {
        self.refuse_const(table)?;
        let at = table.index();
        let (code, entries) = (&self.program.code.tables[at], self.program.tables[at].max_size);
        for pipe in self.pipes.iter_mut() {
            let contents = &mut pipe.state.tables[at];
            *contents = Contents::new(code, entries, std::mem::take(&mut contents.default));
        }
        self.metadata.retain(|key, _| key.0 != table.0);
        Ok(())
    }

    /// The entry with this key and priority.
    ///
    /// # Errors
    /// [`TableError::NoSuchEntry`], or what is wrong with the key.
    pub fn get(&self, table: TableRef, key: &[MatchValue], priority: i32) -> Result<Entry, TableError> {
        let pairs = check_key(self.program.table_info(table), key, priority)?;
        let row = self.find_or_refuse(table, &pairs, priority)?;
        Ok(self.entry(table, row))
    }

    /// All entries of a table with their direct counters (zero where none is attached), const ones included,
    /// in an order that depends on the table's history only.
    pub fn entries(&self, table: TableRef) -> impl Iterator<Item = (Entry, CounterData)> + '_ {
        self.contents(table)
            .rows()
            .into_iter()
            .map(move |row| (self.entry(table, row), self.counted(table, row)))
    }

    /// Reads the next entries of a table with their direct counters, about `most` of them. `from` is 0 at first. Returns from where to
    /// continue; `None` at the end. Changes of other entries do not change the order.
    ///
    /// For callers that cannot stop the packets while a whole table is read: an entry that exists all the time is met once, whatever
    /// happens to others in between.
    pub fn next_entries(
        &self,
        table: TableRef,
        from: u64,
        most: usize,
        found: &mut Vec<(Entry, CounterData)>,
    ) -> Option<u64> {
        let mut rows = Vec::with_capacity(most.min(1024));
        let next = self.contents(table).slice(from, most, &mut rows);
        found.extend(rows.into_iter().map(|row| (self.entry(table, row), self.counted(table, row))));
        next
    }

    /// Takes the memory that tables have outgrown since the last call. Freeing much of it takes milliseconds: drop it where no packet
    /// waits.
    /// Otherwise it is freed with the pipeline.
    pub fn take_retired(&mut self) -> Vec<Vec<u64>> {
        let mut retired = Vec::new();
        for pipe in self.pipes.iter_mut() {
            pipe.state.tables.iter_mut().for_each(|contents| contents.take_retired(&mut retired));
        }
        retired
    }

    /// Number of entries in a table.
    pub fn len(&self, table: TableRef) -> usize {
        self.contents(table).len
    }

    /// Whether a table has no entries.
    pub fn is_empty(&self, table: TableRef) -> bool {
        self.len(table) == 0
    }

    /// The default action; `None`: a miss does nothing.
    pub fn default_action(&self, table: TableRef) -> Option<ActionCall> {
        let info = self.program.table_info(table);
        let (&head, params) = self.contents(table).default.split_first()?;
        let action = *info.actions.get((head as usize).checked_sub(1)?)?;
        Some(ActionCall { action, params: params.to_vec() })
    }

    /// Sets the default action; `None` restores the one that the program declares (P4Runtime §9.1.2).
    ///
    /// # Errors
    /// [`TableError`]; nothing has changed then.
    pub fn set_default(&mut self, table: TableRef, call: Option<&ActionCall>) -> Result<(), TableError> {
        let info = self.program.table_info(table);
        if info.const_default {
            let name = |call: &ActionCall| self.program.action_info(call.action).name.clone();
            let action = info.initial_default.as_ref().map(name).unwrap_or_default();
            return Err(TableError::ConstDefault { table: info.name.clone(), action });
        }
        let words = match call {
            Some(call) => self.check_action(info, call.action, &call.params)?,
            None => initial_default(info),
        };
        for pipe in self.pipes.iter_mut() {
            pipe.state.tables[table.index()].default.clone_from(&words);
        }
        Ok(())
    }

    /// The direct counter of the entry with this key and priority.
    ///
    /// # Errors
    /// [`TableError::NoDirectCounter`], [`TableError::NoSuchEntry`], or what is wrong with the key.
    pub fn direct_counter(
        &self,
        table: TableRef,
        key: &[MatchValue],
        priority: i32,
    ) -> Result<CounterData, TableError> {
        let pairs = self.counted_key(table, key, priority)?;
        let row = self.find_or_refuse(table, &pairs, priority)?;
        Ok(self.counted(table, row))
    }

    /// Sets the direct counter of the entry with this key and priority.
    ///
    /// # Errors
    /// As [`direct_counter`](Pipeline::direct_counter).
    pub fn set_direct_counter(
        &mut self,
        table: TableRef,
        key: &[MatchValue],
        priority: i32,
        data: CounterData,
    ) -> Result<(), TableError> {
        let pairs = self.counted_key(table, key, priority)?;
        // All of it in one of them.
        let mut data = Some(data);
        self.in_every_pipe(table, &pairs, priority, |contents, _, row| {
            contents.set_counter(row, data.take().unwrap_or_default());
        })
    }

    /// Sets all direct counters of a table to zero.
    ///
    /// # Errors
    /// [`TableError::NoDirectCounter`].
    pub fn clear_direct_counters(&mut self, table: TableRef) -> Result<(), TableError> {
        self.refuse_uncounted(table)?;
        for pipe in self.pipes.iter_mut() {
            let contents = &mut pipe.state.tables[table.index()];
            for row in contents.rows() {
                contents.set_counter(row, CounterData::default());
            }
        }
        Ok(())
    }

    /// One cell of an indirect counter array.
    ///
    /// # Errors
    /// [`TableError::OutOfRange`].
    pub fn counter(&self, counter: CounterRef, index: u64) -> Result<CounterData, TableError> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let mut sum = CounterData::default();
        for pipe in self.pipes.iter() {
            let cell = pipe.state.counters[usize::from(counter.0)].get(at);
            let &[packets, bytes] = cell.ok_or_else(|| self.outside_counter(counter, index))?;
            sum.add(CounterData { packets, bytes });
        }
        Ok(sum)
    }

    /// Sets one cell of an indirect counter array.
    ///
    /// # Errors
    /// [`TableError::OutOfRange`].
    pub fn set_counter(
        &mut self,
        counter: CounterRef,
        index: u64,
        data: CounterData,
    ) -> Result<(), TableError> {
        self.counter(counter, index)?;
        // All of it in one of them.
        let mut data = Some([data.packets, data.bytes]);
        for pipe in self.pipes.iter_mut() {
            pipe.state.counters[usize::from(counter.0)][index as usize] = data.take().unwrap_or_default();
        }
        Ok(())
    }

    /// One cell of a register array, in the first pipe.
    ///
    /// # Errors
    /// [`TableError::OutOfRange`].
    pub fn register(&self, register: RegisterRef, index: u64) -> Result<u64, TableError> {
        let cells = &self.pipes.first.state.registers[usize::from(register.0)];
        let cell = usize::try_from(index).ok().and_then(|at| cells.get(at));
        cell.copied().ok_or_else(|| {
            let info = &self.program.registers[usize::from(register.0)];
            TableError::OutOfRange { kind: "register", name: info.name.clone(), size: info.size, index }
        })
    }

    /// Sets one cell of a register array, in every pipe; bits beyond its width are cut off.
    ///
    /// # Errors
    /// [`TableError::OutOfRange`].
    pub fn set_register(&mut self, register: RegisterRef, index: u64, value: u64) -> Result<(), TableError> {
        self.register(register, index)?;
        let at = usize::from(register.0);
        let value = value & ones(self.program.registers[at].width);
        for pipe in self.pipes.iter_mut() {
            pipe.state.registers[at][index as usize] = value;
        }
        Ok(())
    }

    fn outside_counter(&self, counter: CounterRef, index: u64) -> TableError {
        let info = &self.program.counters[usize::from(counter.0)];
        TableError::OutOfRange { kind: "counter", name: info.name.clone(), size: info.size, index }
    }

    fn refuse_const(&self, table: TableRef) -> Result<(), TableError> {
        let info = self.program.table_info(table);
        if info.const_entries { Err(TableError::ConstTable { table: info.name.clone() }) } else { Ok(()) }
    }

    fn refuse_uncounted(&self, table: TableRef) -> Result<(), TableError> {
        if self.program.code.tables[table.index()].shape.counted {
            return Ok(());
        }
        Err(TableError::NoDirectCounter { table: self.program.table_info(table).name.clone() })
    }

    fn counted_key(
        &self,
        table: TableRef,
        key: &[MatchValue],
        priority: i32,
    ) -> Result<Vec<Pair>, TableError> {
        self.refuse_uncounted(table)?;
        check_key(self.program.table_info(table), key, priority)
    }

    /// Counts of all pipes for the entry that the first pipe has in this row.
    fn counted(&self, table: TableRef, row: u32) -> CounterData {
        let (contents, kind) = (self.contents(table), self.program.kind(table));
        let mut sum = contents.counter(row);
        if !self.pipes.others().is_empty() {
            let (pairs, priority) = contents.key(kind, row);
            for pipe in self.pipes.others() {
                let contents = &pipe.state.tables[table.index()];
                let row = contents.find(kind, &pairs, priority);
                sum.add(row.map_or(CounterData::default(), |row| contents.counter(row)));
            }
        }
        sum
    }

    /// Contents of a table, which are equal in all pipes except for counters.
    fn contents(&self, table: TableRef) -> &Contents {
        &self.pipes.first.state.tables[table.index()]
    }

    /// Changes an entry, by its row in each pipe; refuses when there is none.
    fn in_every_pipe(
        &mut self,
        table: TableRef,
        pairs: &[Pair],
        priority: i32,
        mut change: impl FnMut(&mut Contents, &TableKind, u32),
    ) -> Result<(), TableError> {
        let Self { program, pipes, .. } = self;
        let kind = program.kind(table);
        for pipe in pipes.iter_mut() {
            let contents = &mut pipe.state.tables[table.index()];
            let row = contents.find(kind, pairs, priority);
            let row =
                row.ok_or_else(|| TableError::NoSuchEntry { table: program.table_info(table).name.clone() })?;
            change(contents, kind, row);
        }
        Ok(())
    }

    fn find(&self, table: TableRef, pairs: &[Pair], priority: i32) -> Option<u32> {
        self.contents(table).find(self.program.kind(table), pairs, priority)
    }

    fn find_or_refuse(&self, table: TableRef, pairs: &[Pair], priority: i32) -> Result<u32, TableError> {
        self.find(table, pairs, priority)
            .ok_or_else(|| TableError::NoSuchEntry { table: self.program.table_info(table).name.clone() })
    }

    fn entry(&self, table: TableRef, row: u32) -> Entry {
        let info = self.program.table_info(table);
        let contents = self.contents(table);
        let words = contents.entry(row);
        let local = (words[0] as usize).saturating_sub(1);
        let action = info.actions.get(local).copied().unwrap_or(ActionRef(0));
        let count = self.program.action_info(action).params.len();
        let (pairs, priority) = contents.key(self.program.kind(table), row);
        let key = info.key.iter().zip(&pairs).map(|(field, &pair)| match_value(field, pair)).collect();
        let metadata = self.metadata.get(&(table.0, pairs, priority)).cloned().unwrap_or_default();
        Entry { key, priority, action, params: words[1..=count].to_vec(), metadata }
    }

    fn check_action(
        &self,
        info: &TableInfo,
        action: ActionRef,
        params: &[u64],
    ) -> Result<Vec<u64>, TableError> {
        let name = |action: ActionRef| {
            self.program.actions.get(action.index()).map_or("an action of another program", |a| &a.name)
        };
        if !info.actions.contains(&action) {
            let expected: Vec<&str> = info.actions.iter().map(|&a| name(a)).collect();
            return Err(TableError::NoSuchAction {
                table: info.name.clone(),
                found: name(action).to_owned(),
                expected: expected.join(", "),
            });
        }
        let declared = &self.program.action_info(action).params;
        if declared.len() != params.len() {
            return Err(TableError::WrongArity {
                table: info.name.clone(),
                action: name(action).to_owned(),
                expected: declared.len(),
                found: params.len(),
            });
        }
        for (param, &value) in declared.iter().zip(params) {
            if value > ones(param.width) {
                return Err(TableError::ParamTooWide {
                    table: info.name.clone(),
                    action: name(action).to_owned(),
                    param: param.name.clone(),
                    width: param.width,
                    value,
                });
            }
        }
        Ok(words_of(info, action, params))
    }
}

/// Brings a key into canonical form, or returns what is wrong with it.
fn check_key(info: &TableInfo, key: &[MatchValue], priority: i32) -> Result<Vec<Pair>, TableError> {
    if key.len() != info.key.len() {
        return Err(TableError::WrongKeyArity {
            table: info.name.clone(),
            expected: info.key.len(),
            found: key.len(),
        });
    }
    let expected = match (info.has_priority, priority) {
        (true, ..=0) => Some("a priority of at least 1 (some key field is ternary, range or optional)"),
        (false, 0) | (true, _) => None,
        (false, _) => Some("no priority, that is 0 (all key fields are exact or LPM)"),
    };
    if let Some(expected) = expected {
        return Err(TableError::BadPriority { table: info.name.clone(), expected, found: priority });
    }
    let pairs = info.key.iter().zip(key).map(|(field, value)| {
        check_match(field, value).map_err(|reason| TableError::BadMatch {
            table: info.name.clone(),
            field: field.name.clone(),
            kind: field.kind.name(),
            width: field.width,
            reason,
        })
    });
    pairs.collect()
}

fn check_match(field: &KeyField, value: &MatchValue) -> Result<Pair, String> {
    let all = ones(field.width);
    let fits = |value: u64| {
        if value <= all {
            Ok(value)
        } else {
            Err(format!("expected a value of the field's width, found {value:#x}"))
        }
    };
    match (field.kind, *value) {
        (MatchKind::Exact, MatchValue::Exact(value)) => Ok((fits(value)?, all)),
        (MatchKind::Lpm, MatchValue::Lpm { value, prefix_len }) => {
            if prefix_len > field.width {
                return Err(format!("expected a prefix no longer than the field, found {prefix_len} bits"));
            }
            let mask = all & !ones(field.width - prefix_len);
            if fits(value)? & !mask != 0 {
                return Err(format!(
                    "expected zeros behind the prefix of {prefix_len} bits, found {value:#x}"
                ));
            }
            Ok((value, mask))
        }
        (MatchKind::Ternary, MatchValue::Ternary { value, mask }) => {
            if fits(value)? & !fits(mask)? != 0 {
                return Err(format!("expected zeros outside the mask {mask:#x}, found {value:#x}"));
            }
            Ok((value, mask))
        }
        (MatchKind::Ternary, MatchValue::Optional(Some(value))) => Ok((fits(value)?, all)),
        (MatchKind::Ternary, MatchValue::Optional(None)) => Ok((0, 0)),
        (MatchKind::Range, MatchValue::Range { low, high }) => {
            if fits(low)? > fits(high)? {
                return Err(format!("expected low <= high, found {low:#x} to {high:#x}"));
            }
            Ok((low, high))
        }
        (_, other) => Err(format!("expected a match of this kind, found {other:?}")),
    }
}

fn match_value(field: &KeyField, pair: Pair) -> MatchValue {
    match field.kind {
        MatchKind::Exact => MatchValue::Exact(pair.0),
        MatchKind::Lpm => MatchValue::Lpm { value: pair.0, prefix_len: pair.1.count_ones() as u16 },
        MatchKind::Ternary => MatchValue::Ternary { value: pair.0, mask: pair.1 },
        MatchKind::Range => MatchValue::Range { low: pair.0, high: pair.1 },
    }
}
