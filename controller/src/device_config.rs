//! What `SetForwardingPipelineConfig` carries to a Tofino beside the P4Info: `p4_device_config`, in the two packings in use.
//!
//! ```text
//!   DIR/bfrt.json           tables for the vendor's own API
//!   DIR/pipe/context.json   where the compiler put every table
//!   DIR/pipe/tofino.bin     the chip's configuration
//!
//!   Pi        le32 length, program name; le32 length, tofino.bin; le32 length, context.json     SDE's P4Runtime over PI
//!   Stratum   message BfPipelineConfig { p4_name, bfruntime_info, profiles { name, context, binary, scope } }
//! ```
//!
//! Sources: Stratum's `stratum/hal/lib/barefoot/bf.proto` and its README of device config formats; PI's packing as the
//! builders for it write it.

use std::path::Path;

use prost::Message;

use crate::program::ProgramError;

/// How a switch's P4Runtime server wants its binary.
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
    context: Vec<u8>,
    binary: Vec<u8>,
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

/// The program is on every pipe: a chip has at most four.
const PIPES: [u32; 4] = [0, 1, 2, 3];

/// The compiler's name of the only pipeline.
const PIPELINE: &str = "pipe";

impl TofinoOutput {
    /// Reads a folder that `p4/compile_tofino.sh` made; `name` is what the program is called on the switch.
    ///
    /// # Errors
    /// The first file that is missing.
    pub fn read(folder: &Path, name: &str) -> Result<Self, ProgramError> {
        let file = |part: &str| {
            let path = folder.join(part);
            std::fs::read(&path).map_err(|source| ProgramError::Output { path, source })
        };
        let binary = file("pipe/tofino.bin").or_else(|error| file("pipe/tofino2.bin").map_err(|_| error))?;
        Ok(Self {
            name: name.to_owned(),
            bfrt: file("bfrt.json")?,
            context: file("pipe/context.json")?,
            binary,
        })
    }

    /// The bytes for `p4_device_config`.
    pub fn device_config(&self, format: DeviceConfigFormat) -> Vec<u8> {
        match format {
            DeviceConfigFormat::Stratum => BfPipelineConfig {
                p4_name: self.name.clone(),
                bfruntime_info: self.bfrt.clone(),
                profiles: vec![Profile {
                    profile_name: PIPELINE.to_owned(),
                    context: self.context.clone(),
                    binary: self.binary.clone(),
                    pipe_scope: PIPES.to_vec(),
                }],
            }
            .encode_to_vec(),
            DeviceConfigFormat::Pi => {
                let mut bytes = Vec::new();
                for part in [self.name.as_bytes(), &self.binary, &self.context] {
                    let length = u32::try_from(part.len()).expect("no compiler output is 4 GiB long");
                    bytes.extend(length.to_le_bytes());
                    bytes.extend(part);
                }
                bytes
            }
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
            context: b"{}".to_vec(),
            binary: vec![0xde, 0xad, 0xbe, 0xef],
        }
    }

    #[test]
    fn pi_packs_name_binary_and_context() {
        let bytes = output().device_config(DeviceConfigFormat::Pi);
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
        assert_eq!(output().device_config(DeviceConfigFormat::Stratum), expected);
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = TofinoOutput::read(Path::new("/nowhere/tofino-core"), "x").unwrap_err().to_string();
        assert!(error.contains("/nowhere/tofino-core/pipe/tofino.bin"), "{error}");
        assert!(error.contains("compile_tofino.sh"), "{error}");
    }
}
