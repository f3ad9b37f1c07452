//! `--leaves`: what a lookup reads of a tree's leaf.

use clap::{Args, ValueEnum};
use fatbtree_blink::LeafKind;

/// Kind of leaves of new trees.
#[derive(Args, Clone, Copy)]
pub(crate) struct LeavesArgument {
    /// What a lookup reads of a leaf: all of it (plain), or the two lines of 64 bytes in which its key is if it is there (buckets). Leaves of
    /// buckets hold fewer keys. A tree that is there already keeps its leaves.
    #[arg(long, value_enum, value_name = "plain|buckets")]
    leaves: Option<Leaves>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    Plain,
    Buckets,
}

impl LeavesArgument {
    /// The kind; plain where nothing was said.
    pub(crate) fn kind(self) -> LeafKind {
        match self.leaves {
            None | Some(Leaves::Plain) => LeafKind::Plain,
            Some(Leaves::Buckets) => LeafKind::Buckets,
        }
    }

    /// Whether something was said.
    pub(crate) fn is_given(self) -> bool {
        self.leaves.is_some()
    }

    /// The option as words of another command line.
    pub(crate) fn words(self) -> Vec<String> {
        let word = match self.leaves {
            None => return Vec::new(),
            Some(Leaves::Plain) => "plain",
            Some(Leaves::Buckets) => "buckets",
        };
        vec!["--leaves".to_owned(), word.to_owned()]
    }
}
