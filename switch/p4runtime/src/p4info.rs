//! P4Info as text, as `p4c --p4runtime-files` writes it.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use thiserror::Error;

use crate::config::P4Info;
use crate::proto::DESCRIPTORS;

/// A P4Info text that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum P4InfoError {
    /// Not the protobuf text format, or a field the schema does not have.
    #[error("expected P4Info in protobuf text format (p4c --p4runtime-files x.txtpb), found: {0}")]
    Text(String),
    /// An object without id or name, or a key field or parameter without width.
    #[error("P4Info is incomplete: {0}; compile the program again with a current p4c")]
    Incomplete(String),
    /// Two objects with one id, or a reference to an object that is not there.
    #[error("P4Info contradicts itself: {0}; compile the program again with a current p4c")]
    Inconsistent(String),
}

static P4INFO: LazyLock<MessageDescriptor> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS)
        .expect("the build script encoded these descriptors")
        .get_message_by_name("p4.config.v1.P4Info")
        .expect("p4info.proto defines P4Info")
});

/// Parses the protobuf text format.
///
/// ```
/// let info = fatbtree_p4runtime::p4info::parse(r#"
///     pkg_info { arch: "v1model" }
///     tables { preamble { id: 33554433 name: "ingress.ipv4_route" alias: "ipv4_route" } size: 1024 }
/// "#)?;
/// assert_eq!(info.tables[0].size, 1024);
/// # Ok::<(), fatbtree_p4runtime::p4info::P4InfoError>(())
/// ```
pub fn parse(text: &str) -> Result<P4Info, P4InfoError> {
    let message = DynamicMessage::parse_text_format(P4INFO.clone(), text)
        .map_err(|error| P4InfoError::Text(error.to_string()))?;
    message.transcode_to().map_err(|error| P4InfoError::Text(error.to_string()))
}

/// Writes the protobuf text format, indented, one field a line.
pub fn print(info: &P4Info) -> String {
    let mut message = DynamicMessage::new(P4INFO.clone());
    message.transcode_from(info).expect("the descriptor and the type come from one proto file");
    message.to_text_format_with_options(&prost_reflect::text_format::FormatOptions::new().pretty(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        let info = parse(crate::testdata::P4INFO).expect("the test program parses");
        assert_eq!(parse(&print(&info)), Ok(info));
    }

    #[test]
    fn errors_name_the_culprit() {
        let error = parse("tables { preamble { id: 1 nome: \"x\" } }").expect_err("no field nome");
        assert!(error.to_string().contains("nome"), "{error}");
        assert!(matches!(parse("tables {"), Err(P4InfoError::Text(_))));
    }
}
