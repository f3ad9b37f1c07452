//! Errors from opening a device.

use std::net::Ipv4Addr;

/// Error from opening a device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such device.
    #[error("expected an RDMA device named {name:?}, found {}", said(.found))]
    NoDevice {
        /// Name of the device that was requested.
        name: String,
        /// Names of the devices found.
        found: Vec<String>,
    },
    /// The configuration has an invalid value.
    #[error("{field} of the configuration: expected {expected}, found {found}")]
    Config {
        /// The field of [`Config`](crate::Config).
        field: &'static str,
        /// Expected value.
        expected: &'static str,
        /// Value found.
        found: u64,
    },
    /// The port cannot be used.
    #[error("{name} port {port}: expected {expected}, found {found}; {advice}")]
    Port {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// Expected property of the port.
        expected: &'static str,
        /// Property found.
        found: String,
        /// Advice to the user.
        advice: &'static str,
    },
    /// The port has no address, or not that one.
    #[error(
        "{name} port {port}: expected a RoCEv2 GID made of {}, found {found:?}; give the port's network interface the address",
        wanted(.address)
    )]
    Address {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// The address wanted; `None`: any IPv4 address.
        address: Option<Ipv4Addr>,
        /// IPv4 addresses of the port.
        found: Vec<Ipv4Addr>,
    },
    /// The driver, or the operating system, refused.
    #[error("{name}: cannot {what}: {reason}{advice}")]
    Driver {
        /// The device.
        name: String,
        /// Action that was refused.
        what: &'static str,
        /// Error that the driver or the operating system returned.
        reason: std::io::Error,
        /// Advice to the user, if there is any; begins with a semicolon.
        advice: &'static str,
    },
}

fn said(found: &[String]) -> String {
    match found {
        [] => "no RDMA device at all; load its driver, or make a soft RoCE device: rdma link add rxe0 type rxe netdev eth0".to_owned(),
        found => format!("{}; name one of these", found.join(", ")),
    }
}

fn wanted(address: &Option<Ipv4Addr>) -> String {
    address.map_or("an IPv4 address".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_say_what_there_is_and_what_to_do() {
        let none = OpenError::NoDevice { name: "mlx5_0".into(), found: Vec::new() }.to_string();
        assert!(none.contains("\"mlx5_0\"") && none.contains("rdma link add"), "{none}");
        let other = OpenError::NoDevice { name: "mlx5_0".into(), found: vec!["rxe0".into(), "rxe1".into()] };
        assert!(other.to_string().ends_with("found rxe0, rxe1; name one of these"), "{other}");
    }
}
