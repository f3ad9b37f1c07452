//! How a client is set up.

use fatbtree_index::{ConfigError, Limits, TreeConfig};

/// How a lookup begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// At the root of the key's partition, one ordinary READ per level.
    Ordinary,
    /// With an index read, which the switches send to a node further down. On a connection that is not
    /// registered at its switch the lookup walks ordinarily, and is counted.
    Index,
}

/// A client's own figures; what the servers say comes with [`super::RemoteSide`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClientConfig {
    /// Shape of the tree: the same as the loader's.
    pub tree: TreeConfig,
    /// Path MTU of the connections in bytes. No node may be larger.
    pub path_mtu: u32,
    /// Lookups under way at once, 1 to 65,536.
    pub depth: u32,
    /// Queue pairs per memory server, 1 to 255: lookups are spread over them evenly, and one that fails takes
    /// only its own lookups along.
    pub lanes: u8,
    /// How often one lookup may lose its connection and begin again; the next time it fails.
    pub max_restarts: u32,
    /// How often a lookup tries against nodes that do not fit.
    pub limits: Limits,
}

impl Default for ClientConfig {
    /// The default tree at path MTU 1024; 16 lookups over one queue pair per server.
    fn default() -> Self {
        ClientConfig {
            tree: TreeConfig::default(),
            path_mtu: 1024,
            depth: 16,
            lanes: 1,
            max_restarts: 4,
            limits: Limits::default(),
        }
    }
}

/// Most lookups under way at once: their slot numbers share 32 bits with nothing else, but memory is finite.
const MAX_DEPTH: u32 = 1 << 16;

impl ClientConfig {
    /// Refuses what cannot work.
    pub(super) fn check(&self) -> Result<(), ClientConfigError> {
        self.tree.check_path_mtu(self.path_mtu)?;
        if !(1..=MAX_DEPTH).contains(&self.depth) {
            return Err(ClientConfigError::Depth { found: self.depth });
        }
        if self.lanes == 0 {
            return Err(ClientConfigError::Lanes);
        }
        Ok(())
    }
}

/// Why a client cannot be set up like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientConfigError {
    /// The single-packet rule (design §5).
    #[error(transparent)]
    Tree(#[from] ConfigError),
    /// No lookups, or absurdly many.
    #[error("a depth of 1 to {MAX_DEPTH} lookups under way is possible, found {found}")]
    Depth {
        /// What was asked for.
        found: u32,
    },
    /// No queue pair to any server.
    #[error("expected at least 1 queue pair per memory server, found 0 lanes")]
    Lanes,
}
