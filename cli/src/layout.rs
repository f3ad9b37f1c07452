//! Layout of trees: `--leaves`, what a lookup reads of a leaf, and `--inline`, which values lie in leaves.

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use fatbtree_blink::{LeafKind, ValueLayout};
use fatbtree_blink_host::Layout;
use fatbtree_topology::Structure;

use crate::structure::refuse_without_tree;

/// Kind of leaves of new trees.
#[derive(Args, Clone, Copy)]
pub(crate) struct LeavesArgument {
    /// What a lookup reads of a leaf: all of it (plain), or the two lines of 64 bytes in which its key is if it is there (buckets). Leaves of
    /// buckets hold fewer keys. By default as in the tree that is replaced, and plain where there was none.
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

/// Layout of trees that are loaded.
#[derive(Args, Clone, Copy)]
pub(crate) struct LayoutArguments {
    /// Keep values of up to so many bytes in the leaves, where one round trip finds them; longer ones lie in records. Leaves hold fewer keys so: 45 with
    /// 11 bytes, 15 with 32 (plain). By default as in the tree that is replaced, and where there was none 11, for which a leaf has room in any case.
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u8).range(11..=64))]
    inline: Option<u8>,
    #[command(flatten)]
    pub(crate) leaves: LeavesArgument,
}

impl LayoutArguments {
    /// Place of values; as leaves have room for them where nothing was said.
    pub(crate) fn values(self) -> ValueLayout {
        self.inline.map_or(ValueLayout::SHORT, ValueLayout::ByLength)
    }

    /// What was said, and nothing else.
    pub(crate) fn given_layout(self) -> Layout {
        let leaves = self.leaves.is_given().then(|| self.leaves.kind());
        Layout { values: self.inline.map(ValueLayout::ByLength), leaves, ..Layout::default() }
    }

    /// An option that was given.
    pub(crate) fn given(self) -> Option<&'static str> {
        match self.inline {
            Some(_) => Some("--inline"),
            None => self.leaves.is_given().then_some("--leaves"),
        }
    }

    /// Refuses them for structures that are no trees.
    pub(crate) fn check_structure(self, structure: Structure) -> Result<()> {
        let option = self.given();
        refuse_without_tree(
            structure,
            option.is_some(),
            option.unwrap_or_default(),
            "it has a layout of its own",
        )
    }

    /// The options as words of another command line.
    pub(crate) fn words(self) -> Vec<String> {
        let inline = self.inline.iter().flat_map(|bytes| ["--inline".to_owned(), bytes.to_string()]);
        inline.chain(self.leaves.words()).collect()
    }
}
