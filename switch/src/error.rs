//! Errors from loading a program, and from changing its tables.

/// Errors from loading a program. Loading is all or nothing: parts of the format that this switch does not
/// run are refused here, by name, and never skipped.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// The text is no JSON, or has not the shape of a BMv2 program.
    #[error("expected a BMv2 program (the JSON that p4c-bm2-ss writes), found: {0}")]
    Json(String),
    /// The format's major version differs.
    #[error(
        "expected BMv2 JSON format 2.x, found version {major}.{minor}: \
         compile the program with a p4c that writes format 2"
    )]
    Version {
        /// Major version found.
        major: u64,
        /// Minor version found.
        minor: u64,
    },
    /// A part of the format that this switch does not run.
    #[error("{place}: {what} is not supported by this switch: remove it or run the program on BMv2")]
    Unsupported {
        /// Place in the program, for example ``action `ingress.x` ``.
        place: String,
        /// The feature, for example ``primitive `recirculate` ``.
        what: String,
    },
    /// A reference to something that the program does not declare.
    #[error(
        "{place}: refers to {kind} `{name}`, which the program does not declare: \
         compile it again, the JSON is damaged or edited"
    )]
    Unknown {
        /// Place of the reference.
        place: String,
        /// Kind of the missing thing.
        kind: &'static str,
        /// The name or id that was not found.
        name: String,
    },
    /// Something that contradicts the format.
    #[error(
        "{place}: expected {expected}, found {found}: compile the program again, the JSON is damaged or edited"
    )]
    Malformed {
        /// The place in the program.
        place: String,
        /// The form that the format prescribes.
        expected: String,
        /// The content of the program.
        found: String,
    },
    /// A program larger than this switch's fixed storage.
    #[error(
        "{place}: needs {need} {what}, this switch has {limit}: make the program smaller or run it on BMv2"
    )]
    TooLarge {
        /// The place in the program.
        place: String,
        /// The resource.
        what: &'static str,
        /// The need.
        need: usize,
        /// The limit.
        limit: usize,
    },
}

/// gRPC status of a [`TableError`] (P4Runtime §12.3 and §9.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// `ALREADY_EXISTS`
    AlreadyExists,
    /// `NOT_FOUND`
    NotFound,
    /// `RESOURCE_EXHAUSTED`
    ResourceExhausted,
    /// `INVALID_ARGUMENT`
    InvalidArgument,
    /// `PERMISSION_DENIED`
    PermissionDenied,
    /// `OUT_OF_RANGE`
    OutOfRange,
}

/// Reasons for which a change to a table, counter or register was refused. Nothing has changed when one is returned.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum TableError {
    /// An entry with this key (and priority) exists.
    #[error("table `{table}` already has an entry with this key and priority: MODIFY it, or DELETE it first")]
    Duplicate {
        /// Table name.
        table: String,
    },
    /// No entry with this key (and priority).
    #[error("table `{table}` has no entry with this key and priority: INSERT it first")]
    NoSuchEntry {
        /// Table name.
        table: String,
    },
    /// The table's declared size is reached.
    #[error("table `{table}` is full: it holds {size} entries by its P4 declaration; delete some first")]
    Full {
        /// Table name.
        table: String,
        /// Entries it can hold.
        size: usize,
    },
    /// The table's entries are `const` in P4.
    #[error(
        "table `{table}` has const entries: they belong to the program and cannot be changed at run time"
    )]
    ConstTable {
        /// Table name.
        table: String,
    },
    /// The table's default action is `const` in P4.
    #[error("table `{table}` has a const default action `{action}`: it cannot be changed at run time")]
    ConstDefault {
        /// Table name.
        table: String,
        /// The default action.
        action: String,
    },
    /// The action is not one of the table's.
    #[error("table `{table}` expects one of its actions [{expected}], found `{found}`")]
    NoSuchAction {
        /// Table name.
        table: String,
        /// The action asked for.
        found: String,
        /// The table's actions, separated by commas.
        expected: String,
    },
    /// Wrong number of action parameters.
    #[error("table `{table}`: action `{action}` expects {expected} parameters, found {found}")]
    WrongArity {
        /// Table name.
        table: String,
        /// Action name.
        action: String,
        /// Parameters declared.
        expected: usize,
        /// Parameters given.
        found: usize,
    },
    /// A parameter does not fit its declared width.
    #[error(
        "table `{table}`: parameter `{param}` of action `{action}` has {width} bits, {value:#x} does not fit"
    )]
    ParamTooWide {
        /// Table name.
        table: String,
        /// Action name.
        action: String,
        /// Parameter name.
        param: String,
        /// Declared width in bits.
        width: u16,
        /// The value given.
        value: u64,
    },
    /// Wrong number of key fields.
    #[error("table `{table}` expects {expected} key fields, found {found}")]
    WrongKeyArity {
        /// Table name.
        table: String,
        /// Fields declared.
        expected: usize,
        /// Fields given.
        found: usize,
    },
    /// A key field's value is of another match kind, too wide, or not canonical.
    #[error("table `{table}`, key field `{field}` ({kind}, {width} bits): {reason}")]
    BadMatch {
        /// Table name.
        table: String,
        /// Key field name.
        field: String,
        /// Declared match kind.
        kind: &'static str,
        /// Declared width in bits.
        width: u16,
        /// The problem of the value.
        reason: String,
    },
    /// A priority in a table without priorities, or a missing one.
    #[error("table `{table}`: expected {expected}, found priority {found}")]
    BadPriority {
        /// Table name.
        table: String,
        /// The rule of the table's match kinds.
        expected: &'static str,
        /// The priority given.
        found: i32,
    },
    /// The table has no direct counter.
    #[error("table `{table}` has no direct counter: attach one in P4 (`counters = …`)")]
    NoDirectCounter {
        /// Table name.
        table: String,
    },
    /// An index outside a counter or register array.
    #[error("{kind} `{name}` has {size} cells, index {index} is outside")]
    OutOfRange {
        /// `counter` or `register`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Number of cells.
        size: usize,
        /// The index asked for.
        index: u64,
    },
}

impl TableError {
    /// The gRPC status that a P4Runtime server answers with.
    pub fn class(&self) -> ErrorClass {
        match self {
            TableError::Duplicate { .. } => ErrorClass::AlreadyExists,
            TableError::NoSuchEntry { .. } => ErrorClass::NotFound,
            TableError::Full { .. } => ErrorClass::ResourceExhausted,
            TableError::ConstTable { .. } | TableError::ConstDefault { .. } => ErrorClass::PermissionDenied,
            TableError::NoSuchAction { .. }
            | TableError::WrongArity { .. }
            | TableError::ParamTooWide { .. }
            | TableError::WrongKeyArity { .. }
            | TableError::BadMatch { .. }
            | TableError::BadPriority { .. }
            | TableError::NoDirectCounter { .. } => ErrorClass::InvalidArgument,
            TableError::OutOfRange { .. } => ErrorClass::OutOfRange,
        }
    }
}
