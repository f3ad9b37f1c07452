//! Data that `SetForwardingPipelineConfig` carries to a Tofino beside the P4Info: `p4_device_config`, in the two packings in use.
//!
//! ```text
//!   DIR/bfrt.json           tables for the vendor's own API
//!   DIR/pipe/context.json   where the compiler put every table
//!   DIR/pipe/tofino.bin     the chip's configuration
//!   DIR/second_pipe/        the same of the pipes in which a folded switch makes its second pass
//!
//!   Pi        le32 length, program name; le32 length, tofino.bin; le32 length, context.json     SDE's P4Runtime over PI
//!   Stratum   message BfPipelineConfig { p4_name, bfruntime_info, profiles { name, context, binary, scope } }
//! ```
//!
//! Sources: Stratum's `stratum/hal/lib/barefoot/bf.proto` and its README of device config formats; PI's packing as the
//! builders for it write it.

use std::collections::BTreeSet;
use std::path::Path;

use prost::Message;

use crate::program::ProgramError;

/// Format in which a switch's P4Runtime server expects its binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceConfigFormat {
    /// Stratum (`stratum_bfrt`, and `stratum_bf`).
    #[default]
    Stratum,
    /// The SDE's own P4Runtime server, and `stratum_bf`.
    Pi,
}

/// The compiler's output for one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TofinoOutput {
    name: String,
    bfrt: Vec<u8>,
    pipelines: Vec<Pipeline>,
}

/// Program of some of the chip's pipes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pipeline {
    name: String,
    context: Vec<u8>,
    binary: Vec<u8>,
    pipes: Vec<u32>,
}

/// `stratum.hal.barefoot.BfPipelineConfig`.
#[derive(Clone, PartialEq, Eq, Message)]
struct BfPipelineConfig {
    #[prost(string, tag = "1")]
    p4_name: String,
    #[prost(bytes = "vec", tag = "2")]
    bfruntime_info: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    profiles: Vec<Profile>,
}

/// `stratum.hal.barefoot.BfPipelineConfig.Profile`.
#[derive(Clone, PartialEq, Eq, Message)]
struct Profile {
    #[prost(string, tag = "1")]
    profile_name: String,
    #[prost(bytes = "vec", tag = "2")]
    context: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    binary: Vec<u8>,
    #[prost(uint32, repeated, tag = "4")]
    pipe_scope: Vec<u32>,
}

/// Pipes of a chip, at most.
const PIPES: u32 = 4;

/// The compiler's name of the pipeline that hosts and trunks are on, and of a folded switch's other one.
const PIPELINE: &str = "pipe";
const SECOND_PIPELINE: &str = "second_pipe";

impl TofinoOutput {
    /// Reads a folder that `p4/compile_tofino.sh` made; `name` is what the program is called on the switch. A folded switch makes its second
    /// pass in `second_pipes`.
    ///
    /// # Errors
    /// The first file that is missing.
    pub fn read(folder: &Path, name: &str, second_pipes: &BTreeSet<u32>) -> Result<Self, ProgramError> {
        let file = |part: &str| {
            let path = folder.join(part);
            std::fs::read(&path).map_err(|source| ProgramError::Output { path, source })
        };
        let pipeline = |name: &str, pipes: Vec<u32>| -> Result<Pipeline, ProgramError> {
            let binary = file(&format!("{name}/tofino.bin"))
                .or_else(|error| file(&format!("{name}/tofino2.bin")).map_err(|_| error))?;
            let context = file(&format!("{name}/context.json"))?;
            Ok(Pipeline { name: name.to_owned(), context, binary, pipes })
        };
        let (second, first) = (0..PIPES).partition(|pipe| second_pipes.contains(pipe));
        let mut pipelines = vec![pipeline(PIPELINE, first)?];
        if !second_pipes.is_empty() {
            pipelines.push(pipeline(SECOND_PIPELINE, second)?);
        }
        Ok(Self { name: name.to_owned(), bfrt: file("bfrt.json")?, pipelines })
    }

    /// The bytes for `p4_device_config`.
    ///
    /// # Errors
    /// Two pipelines in a packing that has room for one.
    pub fn device_config(&self, format: DeviceConfigFormat) -> Result<Vec<u8>, ProgramError> {
        let profile = |pipeline: &Pipeline| Profile {
            profile_name: pipeline.name.clone(),
            context: pipeline.context.clone(),
            binary: pipeline.binary.clone(),
            pipe_scope: pipeline.pipes.clone(),
        };
        match (format, &self.pipelines[..]) {
            (DeviceConfigFormat::Stratum, pipelines) => Ok(BfPipelineConfig {
                p4_name: self.name.clone(),
                bfruntime_info: self.bfrt.clone(),
                profiles: pipelines.iter().map(profile).collect(),
            }
            .encode_to_vec()),
            (DeviceConfigFormat::Pi, [only]) => {
                let mut bytes = Vec::new();
                for part in [self.name.as_bytes(), &only.binary, &only.context] {
                    let length = u32::try_from(part.len()).expect("no compiler output is 4 GiB long");
                    bytes.extend(length.to_le_bytes());
                    bytes.extend(part);
                }
                Ok(bytes)
            }
            (DeviceConfigFormat::Pi, _) => Err(ProgramError::OnePipeline { program: self.name.clone() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> TofinoOutput {
        TofinoOutput {
            name: "fatbtree_core".to_owned(),
            bfrt: b"{\"tables\": []}".to_vec(),
            pipelines: vec![Pipeline {
                name: "pipe".to_owned(),
                context: b"{}".to_vec(),
                binary: vec![0xde, 0xad, 0xbe, 0xef],
                pipes: vec![0, 1, 2, 3],
            }],
        }
    }

    #[test]
    fn pi_packs_name_binary_and_context() {
        let bytes = output().device_config(DeviceConfigFormat::Pi).unwrap();
        let expected = [
            &[13, 0, 0, 0],
            b"fatbtree_core".as_slice(),
            &[4, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef],
            &[2, 0, 0, 0],
            b"{}",
        ]
        .concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn stratum_gets_its_message() {
        // By hand: field number and wire type, length, value.
        let mut profile = vec![0x0a, 4];
        profile.extend(b"pipe");
        profile.extend([0x12, 2]);
        profile.extend(b"{}");
        profile.extend([0x1a, 4, 0xde, 0xad, 0xbe, 0xef, 0x22, 4, 0, 1, 2, 3]);
        let mut expected = vec![0x0a, 13];
        expected.extend(b"fatbtree_core");
        expected.extend([0x12, 14]);
        expected.extend(b"{\"tables\": []}");
        expected.extend([0x1a, u8::try_from(profile.len()).unwrap()]);
        expected.extend(profile);
        assert_eq!(output().device_config(DeviceConfigFormat::Stratum).unwrap(), expected);
    }

    #[test]
    fn a_folded_switch_has_two_pipelines() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("bfrt.json"), "{}").unwrap();
        for pipeline in ["pipe", "second_pipe"] {
            let files = folder.path().join(pipeline);
            std::fs::create_dir(&files).unwrap();
            std::fs::write(files.join("tofino.bin"), pipeline).unwrap();
            std::fs::write(files.join("context.json"), "{}").unwrap();
        }
        let read = |second: &[u32]| {
            TofinoOutput::read(folder.path(), "x", &second.iter().copied().collect()).unwrap()
        };
        let bytes = read(&[1]).device_config(DeviceConfigFormat::Stratum).unwrap();
        let config = BfPipelineConfig::decode(bytes.as_slice()).unwrap();
        let scopes: Vec<(&str, &[u8], &[u32])> = config
            .profiles
            .iter()
            .map(|profile| (&*profile.profile_name, &*profile.binary, &*profile.pipe_scope))
            .collect();
        let expected: [(&str, &[u8], &[u32]); 2] =
            [("pipe", b"pipe", &[0, 2, 3]), ("second_pipe", b"second_pipe", &[1])];
        assert_eq!(scopes, expected);
        let error = read(&[1]).device_config(DeviceConfigFormat::Pi).unwrap_err().to_string();
        assert!(error.contains("--format stratum"), "{error}");
        assert!(read(&[]).device_config(DeviceConfigFormat::Pi).is_ok(), "the others have one");
        std::fs::remove_file(folder.path().join("second_pipe/tofino.bin")).unwrap();
        let error = TofinoOutput::read(folder.path(), "x", &[1].into()).unwrap_err().to_string();
        assert!(error.contains("second_pipe/tofino.bin"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = TofinoOutput::read(Path::new("/nowhere/tofino-core"), "x", &BTreeSet::new());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("/nowhere/tofino-core/pipe/tofino.bin"), "{error}");
        assert!(error.contains("compile_tofino.sh"), "{error}");
    }
}
