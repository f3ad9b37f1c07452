//! Structure of the TOML file. Every value keeps its place, so that validation can name the line.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

use super::{KeyKind, Structure};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) structure: Structure,
    #[serde(default = "numbers")]
    pub(super) keys: Spanned<KeyKind>,
    pub(super) network: Spanned<Network>,
    pub(super) p4runtime: Option<Spanned<P4Runtime>>,
    pub(super) controller: Option<Controller>,
    pub(super) wires: Option<Wires>,
    pub(super) trust: Option<Spanned<Trust>>,
    pub(super) metrics: Option<Metrics>,
    #[serde(default)]
    pub(super) switch: Vec<Spanned<Switch>>,
    #[serde(default)]
    pub(super) memory_server: Vec<Spanned<MemoryServer>>,
    #[serde(default)]
    pub(super) client: Vec<Client>,
    #[serde(default)]
    pub(super) host: Vec<Host>,
}

fn numbers() -> Spanned<KeyKind> {
    Spanned::new(0..0, KeyKind::Numbers)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Network {
    #[serde(default)]
    pub(super) kind: Kind,
    pub(super) hosts: Option<Spanned<i64>>,
    pub(super) leaves: Option<Spanned<i64>>,
    pub(super) spines: Option<Spanned<i64>>,
    pub(super) k: Option<Spanned<i64>>,
    pub(super) cores: Option<Spanned<Cores>>,
    pub(super) core: Option<Spanned<i64>>,
    pub(super) in_flight_port: Option<Spanned<i64>>,
    pub(super) loopback_ports: Option<Spanned<Vec<Spanned<i64>>>>,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Single,
    Pair,
    LeafSpine,
    #[default]
    FatTree,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
pub(super) enum Cores {
    #[default]
    One,
    All,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct P4Runtime {
    pub(super) host: Option<Spanned<String>>,
    pub(super) first_port: Option<Spanned<i64>>,
    pub(super) first_device_id: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Controller {
    pub(super) grpc: Spanned<String>,
    #[serde(default)]
    pub(super) standby: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trust {
    pub(super) folder: Option<Spanned<String>>,
    pub(super) plaintext: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) query_open: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metrics {
    pub(super) host: Option<Spanned<String>>,
    pub(super) first_port: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wires {
    pub(super) host: Option<Spanned<String>>,
    pub(super) first_port: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    pub(super) name: Spanned<String>,
    pub(super) p4runtime: Option<Spanned<String>>,
    pub(super) device_id: Option<Spanned<i64>>,
    pub(super) ports: Option<Spanned<Ports>>,
    pub(super) machine: Option<Spanned<String>>,
    pub(super) wires: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryServer {
    pub(super) host: Spanned<String>,
    pub(super) partition: Option<Spanned<i64>>,
    pub(super) low: Option<Spanned<Key>>,
    pub(super) high: Option<Spanned<Key>>,
    pub(super) grpc: Spanned<String>,
    pub(super) query: Option<Spanned<String>>,
    pub(super) name: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Client {
    pub(super) host: Spanned<String>,
    pub(super) name: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Host {
    pub(super) name: Spanned<String>,
    pub(super) ip: Option<Spanned<String>>,
    pub(super) mac: Option<Spanned<String>>,
    pub(super) machine: Option<Spanned<String>>,
    pub(super) wire: Option<Spanned<String>>,
}

/// A 64-bit key: TOML integers end at 2^63 - 1, so strings are welcome too. `Err` holds what was found instead. Behind it the string, if it
/// is one: where keys are bytes, it is a key of them.
pub(super) struct Key(pub(super) Result<u64, String>, pub(super) Option<String>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a 64-bit key: an integer from 0, or a string such as \"0x8000_0000_0000_0000\"")
            }
            fn visit_i64<E>(self, n: i64) -> Result<Key, E> {
                Ok(Key(u64::try_from(n).map_err(|_| n.to_string()), None))
            }
            fn visit_u64<E>(self, n: u64) -> Result<Key, E> {
                Ok(Key(Ok(n), None))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                let digits = text.replace('_', "");
                let number = match digits.strip_prefix("0x") {
                    Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16),
                    _ => digits.parse(),
                };
                let number = number.map_err(|_| format!("{text:?}"));
                Ok(Key(number, Some(text.to_owned())))
            }
        }
        deserializer.deserialize_any(KeyVisitor)
    }
}

/// The device ports of a switch.
pub(super) enum Ports {
    /// Numbers of all its ports, in their order.
    All(Vec<Spanned<i64>>),
    /// Numbers of the wired ports, by port.
    Wired(Vec<(Spanned<String>, Spanned<i64>)>),
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortsVisitor;
        impl<'de> Visitor<'de> for PortsVisitor {
            type Value = Ports;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("device ports: a list such as [132, 140], or those of wired ports such as { 0 = 132, 2 = 148 }")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ports, A::Error> {
                let mut all = Vec::new();
                while let Some(port) = list.next_element()? {
                    all.push(port);
                }
                Ok(Ports::All(all))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Ports, A::Error> {
                let mut wired = Vec::new();
                while let Some(pair) = table.next_entry()? {
                    wired.push(pair);
                }
                Ok(Ports::Wired(wired))
            }
        }
        deserializer.deserialize_any(PortsVisitor)
    }
}
