//! Tables of figures: rows with named columns, for people and for programs.
//!
//! ```text
//!   a figure ──► Row: number or text of each Column ──► Table with its Layout ─┬─► JSON: all fields, by name
//!                                                                              └─► text: shown columns, with units
//! ```

use std::collections::BTreeMap;
use std::ops::Index;

use serde::{Serialize, Serializer};

/// Column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// Name in JSON.
    name: &'static str,
    /// Title for people.
    title: &'static str,
    /// Unit for people; empty for texts, and where the title says it.
    unit: &'static str,
    kind: Kind,
    /// 0 means that nothing was measured, and people see nothing.
    zero_is_missing: bool,
}

/// Content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Count,
    /// A number, with so many digits for people.
    Number(usize),
    /// A difference with its sign. It is missing where it was not set.
    Difference,
}

impl Column {
    pub(crate) const fn new(name: &'static str, title: &'static str, unit: &'static str, kind: Kind) -> Self {
        Self { name, title, unit, kind, zero_is_missing: false }
    }

    /// The same, where 0 means that nothing was measured.
    pub(crate) const fn or_missing(self) -> Self {
        Self { zero_is_missing: true, ..self }
    }

    /// Title and unit.
    fn heading(&self) -> String {
        [self.title, self.unit].join(" ").trim().to_owned()
    }
}

/// Cell of a table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell<'r> {
    /// A name, or words.
    Text(&'r str),
    /// A whole number.
    Count(u64),
    /// Any other number.
    Number(f64),
}

/// Row of a table: numbers by their [`Column`]. One that was not set is 0. Texts that were not set are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    numbers: BTreeMap<&'static str, f64>,
    texts: BTreeMap<&'static str, String>,
}

impl Row {
    /// The same with a text.
    pub(crate) fn saying(mut self, column: Column, text: impl Into<String>) -> Self {
        self.texts.insert(column.name, text.into());
        self
    }

    /// The same with numbers.
    pub(crate) fn with(mut self, numbers: impl IntoIterator<Item = (Column, f64)>) -> Self {
        numbers.into_iter().for_each(|(column, number)| self.set(column, number));
        self
    }

    /// Sets a number.
    pub(crate) fn set(&mut self, column: Column, number: f64) {
        self.numbers.insert(column.name, number);
    }

    /// Text of a column.
    pub(crate) fn text(&self, column: Column) -> &str {
        self.texts.get(column.name).map_or("", String::as_str)
    }

    /// Cell of a column.
    pub(crate) fn cell(&self, column: Column) -> Cell<'_> {
        match column.kind {
            Kind::Text => Cell::Text(self.text(column)),
            Kind::Count => Cell::Count(self[column] as u64),
            Kind::Number(_) | Kind::Difference => Cell::Number(self[column]),
        }
    }

    /// Cell of a column as people see it; empty where nothing was measured.
    fn shown(&self, column: Column) -> String {
        match (column.kind, self[column]) {
            (Kind::Text, _) => self.text(column).to_owned(),
            (Kind::Difference, _) => {
                self.numbers.get(column.name).map_or_else(String::new, |percent| format!("{percent:+.0}"))
            }
            (_, 0.0) if column.zero_is_missing => String::new(),
            (Kind::Count, number) => (number as u64).to_string(),
            (Kind::Number(digits), number) => format!("{number:.digits$}"),
        }
    }
}

impl Index<Column> for Row {
    type Output = f64;

    fn index(&self, column: Column) -> &f64 {
        self.numbers.get(column.name).unwrap_or(&0.0)
    }
}

/// Columns of a kind of table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Fields of a row in JSON, in their order.
    pub(crate) fields: &'static [Column],
    /// Columns for people, in their order.
    pub(crate) shown: &'static [Column],
}

/// Rows of a figure with their columns. As JSON it is a list of objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    layout: &'static Layout,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(layout: &'static Layout, rows: Vec<Row>) -> Self {
        Self { layout, rows }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Headings, and a line of cells for each row: the columns for people that say something.
    pub fn lines(&self) -> Vec<Vec<String>> {
        let of = |column: &Column| self.rows.iter().map(|row| row.shown(*column)).collect::<Vec<_>>();
        let columns = self.layout.shown.iter().map(|column| (column.heading(), of(column)));
        let columns: Vec<_> =
            columns.filter(|(_, cells)| cells.iter().any(|cell| !cell.is_empty())).collect();
        let headings = columns.iter().map(|(heading, _)| heading.clone()).collect();
        let line = |at: usize| columns.iter().map(|(_, cells)| cells[at].clone()).collect();
        [headings].into_iter().chain((0..self.rows.len()).map(line)).collect()
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows.iter().map(|row| Object { fields: self.layout.fields, row }))
    }
}

/// A row as JSON.
struct Object<'r> {
    fields: &'static [Column],
    row: &'r Row,
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields.iter().map(|column| (column.name, self.row.cell(*column))))
    }
}
