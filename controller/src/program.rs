//! Programs of switches: one for all of them, or one for each role.
//!
//! ```text
//!   v1model    one program, empty tables do nothing      core ─┐
//!                                                  aggregation ─┼─▶ the same P4Info and BMv2 JSON
//!                                          edge, single, folded ─┘
//!   Tofino     a program for each role, with its own P4Info and binaries
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fatbtree_p4runtime::{P4InfoError, P4InfoIndex};
use fatbtree_topology::{Cluster, Network, Role};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::device_config::{DeviceConfigFormat, TofinoOutput};
use crate::plan::{STAGES, planned, stage_rows};
use crate::tables::{TableError, Tables};

/// Numbers of device ports in each pipe of a Tofino.
const PORTS_OF_PIPE: u16 = 128;

/// Target of the P4 program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// BMv2 and the software switch.
    V1model,
    /// Tofino 1.
    Tofino1,
    /// Tofino 2.
    Tofino2,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::V1model, Self::Tofino1, Self::Tofino2];

    /// Its name on the command line: `v1model`, `tofino1`, `tofino2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1model => "v1model",
            Self::Tofino1 => "tofino1",
            Self::Tofino2 => "tofino2",
        }
    }

    /// The chip's name in what the compiler made; `None` for v1model.
    pub fn chip(self) -> Option<&'static str> {
        match self {
            Self::V1model => None,
            Self::Tofino1 => Some("tofino"),
            Self::Tofino2 => Some("tofino2"),
        }
    }

    /// The P4Info of a role's program, as text.
    pub fn p4info(self, role: Role) -> &'static str {
        self.chip().map_or(fatbtree_p4::P4INFO, |chip| {
            fatbtree_p4::tofino::p4info(chip, &role.to_string()).expect("every role has a program")
        })
    }
}

/// A program that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Its P4Info is damaged.
    #[error("P4Info: {0}")]
    P4Info(#[from] P4InfoError),
    /// Its tables are not those of this controller.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The compiler's output is not complete.
    #[error("{}: {source}; make it with `p4/compile_tofino.sh DIR`", path.display())]
    Output {
        /// The file that is missing or cannot be read.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A program for two kinds of pipes in a packing for one.
    #[error("{program} has two pipelines, and this packing has room for one: use `--format stratum`")]
    OnePipeline {
        /// The program.
        program: String,
    },
}

/// One compiled program.
#[derive(Debug)]
pub struct Program {
    pub(crate) info: P4InfoIndex,
    pub(crate) tables: Tables,
    pub(crate) device_config: Vec<u8>,
    stage_rows: Option<[usize; STAGES]>,
    /// Connections for which a first switch has room.
    connections: Option<usize>,
    cookie: Option<u64>,
}

impl Program {
    /// A role's program, with the bytes that go to the switch.
    fn new(target: Target, role: Role, device_config: Vec<u8>) -> Result<Arc<Self>, ProgramError> {
        let info = P4InfoIndex::from_text(target.p4info(role))?;
        let tables = Tables::new(&info)?;
        let cookie = cookie(&info, &device_config);
        let stage_rows = target.chip().map(stage_rows);
        let measured = target.chip().and_then(|chip| planned(chip, role, "roce_connection"));
        let connections = measured.or_else(|| usize::try_from(info.table("roce_connection").ok()?.size).ok());
        Ok(Arc::new(Self { info, tables, device_config, stage_rows, connections, cookie }))
    }

    /// A number by which a switch says that it runs this program and no other; none where the binary is not known.
    pub fn cookie(&self) -> Option<u64> {
        self.cookie
    }

    /// Its tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// TCAM rows of each `fat_root_*` table, where the chip's are known.
    pub(crate) fn stage_rows(&self) -> Option<[usize; STAGES]> {
        self.stage_rows
    }

    /// Its P4Info.
    pub fn info(&self) -> &P4InfoIndex {
        &self.info
    }
}

/// Cookie of a program whose binary is known.
fn cookie(info: &P4InfoIndex, device_config: &[u8]) -> Option<u64> {
    if device_config.is_empty() {
        return None;
    }
    let digest = Sha256::new().chain_update(info.p4info().encode_to_vec()).chain_update(device_config);
    let bytes: [u8; 32] = digest.finalize().into();
    bytes.first_chunk().map(|first| u64::from_be_bytes(*first))
}

/// The program of each role.
///
/// ```
/// use fatbtree_controller::Programs;
/// use fatbtree_topology::{Cluster, Network, Role};
///
/// let programs = Programs::v1model()?;
/// assert!(programs.of(Role::Edge).info().has_table("fat_root_0"), "one program with everything");
/// # Ok::<(), fatbtree_controller::ProgramError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Programs {
    core: Arc<Program>,
    aggregation: Arc<Program>,
    edge: Arc<Program>,
    single: Arc<Program>,
    folded: Arc<Program>,
}

impl Programs {
    /// The v1model program of this version, for BMv2 and the software switch: the same one everywhere.
    ///
    /// # Errors
    /// None with the files of this version.
    pub fn v1model() -> Result<Self, ProgramError> {
        let program = Program::new(Target::V1model, Role::Core, fatbtree_p4::PROGRAM.into())?;
        Ok(Self {
            core: program.clone(),
            aggregation: program.clone(),
            edge: program.clone(),
            single: program.clone(),
            folded: program,
        })
    }

    /// The programs of a target, for switches that run them already: those of a Tofino are without their binaries.
    ///
    /// # Errors
    /// None with the files of this version.
    pub fn tables_only(target: Target) -> Result<Self, ProgramError> {
        Self::with_binaries(target, |_, _| Ok(Vec::new()))
    }

    /// The programs of a target with their binaries, for the switches of a network: for Tofino, what `p4/compile_tofino.sh DIR` left in
    /// `compiled`. A program that no switch runs is without its binary.
    ///
    /// # Errors
    /// A file that is missing, or a packing that has no room for what is in it.
    pub fn compiled(
        target: Target,
        compiled: &Path,
        format: DeviceConfigFormat,
        network: &Network,
    ) -> Result<Self, ProgramError> {
        let second_pipes: BTreeSet<u32> =
            network.loopback_ports().iter().map(|port| u32::from(port / PORTS_OF_PIPE)).collect();
        Self::with_binaries(target, |chip, role| {
            if !network.switches().iter().any(|switch| switch.role == role) {
                return Ok(Vec::new());
            }
            let folder = compiled.join(format!("{chip}-{role}"));
            TofinoOutput::read(&folder, &format!("fatbtree_{role}"), &second_pipes)?.device_config(format)
        })
    }

    fn with_binaries(
        target: Target,
        binary: impl Fn(&str, Role) -> Result<Vec<u8>, ProgramError>,
    ) -> Result<Self, ProgramError> {
        let Some(chip) = target.chip() else { return Self::v1model() };
        let program = |role: Role| Program::new(target, role, binary(chip, role)?);
        Ok(Self {
            core: program(Role::Core)?,
            aggregation: program(Role::Aggregation)?,
            edge: program(Role::Edge)?,
            single: program(Role::Single)?,
            folded: program(Role::Folded)?,
        })
    }

    /// The program of a role.
    pub fn of(&self, role: Role) -> &Arc<Program> {
        match role {
            Role::Core => &self.core,
            Role::Aggregation => &self.aggregation,
            Role::Edge => &self.edge,
            Role::Single => &self.single,
            Role::Folded => &self.folded,
        }
    }

    /// Adapts a cluster to switches with these programs: those that have all node sets in one pass have no loopback ports.
    pub fn adapt(&self, cluster: Cluster) -> Cluster {
        if self.folded.tables.has_second_pass() { cluster } else { cluster.in_one_pass() }
    }

    /// Connections that any first switch has room for.
    pub fn connections(&self) -> usize {
        [&self.edge, &self.single, &self.folded]
            .into_iter()
            .filter_map(|program| program.connections)
            .min()
            .unwrap_or(0)
    }
}
