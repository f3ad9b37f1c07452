//! The parts of a table's declaration: a typed key and typed actions, and how P4Runtime spells them.
//!
//! ```text
//!   key! { … }     ──▶ struct Key     + impl Key     ┐
//!                                                    ├─ Table::new: names ▶ ids, once ─▶ Table::lower, Table::read
//!   action! { … }  ──▶ struct Action  + impl Action  ┘
//! ```
//!
//! A declaration names each field once. Its order, size, encoding and decoding follow from that, and `Table::new` (found.rs)
//! compares it with the compiled program. Keys that match otherwise than exactly, and actions that a value selects, implement the
//! traits themselves.

use std::net::Ipv4Addr;

use fatbtree_p4runtime::index::MatchKind;
use fatbtree_topology::MacAddress;

use super::found::{Reader, Writer};
use super::{NodeSet, TableError};

/// A value of a key field or a parameter as a number. `T` is the type that the declaration shows.
pub(super) trait Number<T = Self> {
    /// Width in the P4 program, in whole bytes.
    const BYTES: usize;
    fn encode(value: T) -> u64;
    /// `None` if the number is none that [`encode`](Self::encode) returns.
    fn decode(number: u64) -> Option<T>;
}

/// A number that is narrower in the P4 program than in Rust.
pub(super) struct Bytes<const N: usize>;

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            const BYTES: usize = size_of::<Self>();
            fn encode(value: Self) -> u64 {
                value.into()
            }
            fn decode(number: u64) -> Option<Self> {
                number.try_into().ok()
            }
        }

        impl<const N: usize> Number<$type> for Bytes<N> {
            const BYTES: usize = N;
            fn encode(value: $type) -> u64 {
                value.into()
            }
            fn decode(number: u64) -> Option<$type> {
                number.try_into().ok()
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Number for bool {
    const BYTES: usize = 1;
    fn encode(value: Self) -> u64 {
        value.into()
    }
    fn decode(number: u64) -> Option<Self> {
        Some(number != 0)
    }
}

impl Number for Ipv4Addr {
    const BYTES: usize = 4;
    fn encode(value: Self) -> u64 {
        value.to_bits().into()
    }
    fn decode(number: u64) -> Option<Self> {
        u32::try_from(number).ok().map(Self::from_bits)
    }
}

impl Number for MacAddress {
    const BYTES: usize = 6;
    fn encode(value: Self) -> u64 {
        let [a, b, c, d, e, f] = value.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
    fn decode(number: u64) -> Option<Self> {
        let [0, 0, a, b, c, d, e, f] = number.to_be_bytes() else { return None };
        Some(Self([a, b, c, d, e, f]))
    }
}

/// A field of a key as the P4 program has it.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: MatchKind,
    /// Bytes of its values in an entry; a range has two.
    bytes: usize,
    /// Bytes of one value.
    pub(super) width: usize,
}

impl Field {
    pub(super) const fn exact<N: Number<T>, T>(name: &'static str) -> Self {
        Self { name, kind: MatchKind::Exact, bytes: N::BYTES, width: N::BYTES }
    }

    pub(super) const fn range<N: Number<T>, T>(name: &'static str) -> Self {
        Self { name, kind: MatchKind::Range, bytes: 2 * N::BYTES, width: N::BYTES }
    }

    pub(super) const fn lpm<N: Number<T>, T>(name: &'static str) -> Self {
        Self { name, kind: MatchKind::Lpm, bytes: N::BYTES + 1, width: N::BYTES }
    }
}

/// An action as the P4 program has it.
pub(super) struct Call {
    pub(super) name: &'static str,
    /// Names of the parameters, and their widths in whole bytes.
    pub(super) parameters: &'static [(&'static str, usize)],
}

/// The key of an entry: its fields, and which of several tables the entry is in.
pub(super) trait Key: Copy + Ord {
    /// Names in P4 of the tables that hold such keys.
    const TABLES: &'static [&'static str];
    /// Match fields of the P4 table.
    const FIELDS: &'static [Field];
    /// Index in [`TABLES`](Self::TABLES) of the table that holds this key; beyond them if none does.
    fn table(&self) -> usize {
        0
    }
    /// Writes the fields in the order of [`FIELDS`](Self::FIELDS).
    fn write(self, row: Writer<'_>) -> Writer<'_>;
    /// Reads the fields in the order of [`FIELDS`](Self::FIELDS).
    fn read(row: Reader<'_>) -> Result<Self, TableError>;

    /// Size in bytes, every field in whole ones.
    fn bytes() -> usize {
        Self::FIELDS.iter().map(|field| field.bytes).sum()
    }
}

/// The action of an entry: one of a few, with arguments.
pub(super) trait Action: Copy {
    /// The actions that the controller writes.
    const CALLS: &'static [Call];
    /// Whether the table at this index of its key's tables has this one of the actions.
    fn is_in(_call: usize, _table: usize) -> bool {
        true
    }
    /// Passes on which of [`CALLS`](Self::CALLS) it is, beyond them if none, and the arguments.
    fn call<R>(self, with: impl FnOnce(usize, &[u64]) -> R) -> R;
    /// The action from the arguments of one of [`CALLS`](Self::CALLS), as many as it has parameters.
    fn of(call: usize, arguments: &[u64]) -> Option<Self>;

    /// Size in bytes, every argument in whole ones.
    fn bytes(self) -> usize {
        let of = |call: &Call| call.parameters.iter().map(|(_, bytes)| bytes).sum();
        self.call(|call, _| Self::CALLS.get(call).map_or(0, of))
    }
}

/// A key field that the P4 program does not match: it selects the table.
pub(super) trait Place: Copy {
    const COUNT: usize;
    fn index(self) -> usize;
    fn at(index: usize) -> Self;

    /// The index of both this field and those before it, which have this index.
    fn after(self, before: usize) -> usize {
        before * Self::COUNT + self.index()
    }
}

impl Place for NodeSet {
    const COUNT: usize = Self::ALL.len();
    fn index(self) -> usize {
        self as usize
    }
    fn at(index: usize) -> Self {
        Self::ALL[index]
    }
}

impl Place for bool {
    const COUNT: usize = 2;
    fn index(self) -> usize {
        self.into()
    }
    fn at(index: usize) -> Self {
        index != 0
    }
}

/// Declares a struct of exact fields as a table's key, `in` these tables, selected `by` further fields.
macro_rules! key {
    (
        $(#[$meta:meta])*
        pub struct $Key:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty $(as $codec:ty)? = exact $($name:literal)?,)*
        }
        in $tables:expr
        $(, by { $($(#[$place_meta:meta])* $place:ident: $of:ty,)* })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $Key {
            $($($(#[$place_meta])* pub $place: $of,)*)?
            $($(#[$field_meta])* pub $field: $type,)*
        }

        const _: () = {
            use $crate::tables::declare::{Field, codec, name};
            use $crate::tables::found::{Reader, Writer};

            impl $crate::tables::declare::Key for $Key {
                const TABLES: &'static [&'static str] = &$tables;
                const FIELDS: &'static [Field] =
                    &[$(Field::exact::<codec!($type $(as $codec)?), $type>(name!($field $($name)?)),)*];

                fn table(&self) -> usize {
                    let at = 0;
                    $($(let at = $crate::tables::declare::Place::after(self.$place, at);)*)?
                    at
                }

                fn write(self, row: Writer<'_>) -> Writer<'_> {
                    $(let row = row.exact::<codec!($type $(as $codec)?), _>(self.$field);)*
                    row
                }

                fn read(mut row: Reader<'_>) -> Result<Self, $crate::tables::TableError> {
                    $($(let $place = row.place();)*)?
                    Ok(Self {
                        $($($place,)*)?
                        $($field: row.exact::<codec!($type $(as $codec)?), _>()?,)*
                    })
                }
            }
        };
    };
}

/// Declares a struct as a table's only action, or an enum as its actions. `without Debug`: a type that implements it itself.
macro_rules! action {
    ($(#[$meta:meta])* pub struct $Action:ident = $name:literal without Debug {
        $($(#[$field_meta:meta])* $field:ident: $type:ty $(as $codec:ty)? $(= $parameter:literal)?,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $Action {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        $crate::tables::declare::action! { @impl $Action
            Only => Self = $name { $($field: $type $(as $codec)? $(= $parameter)?,)* },
        }
    };
    ($(#[$meta:meta])* pub struct $Action:ident = $name:literal { $($fields:tt)* }) => {
        $crate::tables::declare::action! {
            $(#[$meta])*
            #[derive(Debug)]
            pub struct $Action = $name without Debug { $($fields)* }
        }
    };
    ($(#[$meta:meta])* pub struct $Action:ident = $name:literal;) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $Action;

        $crate::tables::declare::action! { @impl $Action Only => Self = $name {}, }
    };
    ($(#[$meta:meta])* pub enum $Action:ident {
        $($(#[$variant_meta:meta])* $Variant:ident = $name:literal $({
            $($(#[$field_meta:meta])* $field:ident: $type:ty $(as $codec:ty)? $(= $parameter:literal)?,)*
        })?,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $Action {
            $($(#[$variant_meta])* $Variant $({ $($(#[$field_meta])* $field: $type,)* })?,)*
        }

        $crate::tables::declare::action! { @impl $Action
            $($Variant => Self::$Variant = $name { $($($field: $type $(as $codec)? $(= $parameter)?,)*)? },)*
        }
    };
    (@impl $Action:ident
        $($Call:ident => Self $(:: $Variant:ident)? = $name:literal {
            $($field:ident: $type:ty $(as $codec:ty)? $(= $parameter:literal)?,)*
        },)*
    ) => {
        const _: () = {
            #[allow(unused_imports, reason = "an action without parameters needs no codec")]
            use $crate::tables::declare::{Call, Number, codec, name};

            /// Indices in the list of actions.
            enum Calls {
                $($Call,)*
            }

            impl $crate::tables::declare::Action for $Action {
                const CALLS: &'static [Call] = &[$(Call {
                    name: $name,
                    parameters: &[$((
                        name!($field $($parameter)?),
                        <codec!($type $(as $codec)?) as Number<$type>>::BYTES,
                    ),)*],
                },)*];

                fn call<R>(self, with: impl FnOnce(usize, &[u64]) -> R) -> R {
                    match self {$(
                        Self $(:: $Variant)? { $($field,)* } => with(
                            Calls::$Call as usize,
                            &[$(<codec!($type $(as $codec)?) as Number<$type>>::encode($field),)*],
                        ),
                    )*}
                }

                fn of(call: usize, arguments: &[u64]) -> Option<Self> {
                    $(if call == Calls::$Call as usize {
                        let [$($field,)*] = *arguments else { return None };
                        $(let $field = <codec!($type $(as $codec)?) as Number<$type>>::decode($field)?;)*
                        return Some(Self $(:: $Variant)? { $($field,)* });
                    })*
                    None
                }
            }
        };
    };
}

/// The type that encodes a field: its own, or the one after `as`.
macro_rules! codec {
    ($type:ty) => {
        $type
    };
    ($type:ty as $codec:ty) => {
        $codec
    };
}

/// The name of a field in P4: the same, or the one after `=`.
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// Names in P4 of the tables that each node set has.
macro_rules! of_each_set {
    ($($name:literal),*) => {
        [
            $(concat!("node_set_a.", $name),)*
            $(concat!("node_set_b.", $name),)*
            $(concat!("node_set_c.", $name),)*
        ]
    };
}

pub(super) use {action, codec, key, name, of_each_set};
