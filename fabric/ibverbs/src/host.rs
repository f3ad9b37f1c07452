//! Properties of a device as the kernel gives them in `/sys`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The kernel's view of one RDMA device.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    sys: PathBuf,
    name: String,
}

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        Self { sys: "/sys".into(), name: name.to_owned() }
    }

    fn device(&self) -> PathBuf {
        self.sys.join("class/infiniband").join(&self.name)
    }

    /// MAC address of the network interface behind an entry of the GID table.
    pub(crate) fn mac(&self, port: u8, gid_index: u32) -> io::Result<[u8; 6]> {
        let interface = self.device().join(format!("ports/{port}/gid_attrs/ndevs/{gid_index}"));
        let interface = read(&interface)?;
        let path = self.sys.join("class/net").join(interface.trim()).join("address");
        let text = read(&path)?;
        let bytes: Option<Vec<u8>> =
            text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
            io::Error::other(format!("{}: expected a MAC address, found {:?}", path.display(), text.trim()))
        })
    }

    /// The driver of the card behind the device; `None` when there is no card.
    fn driver(&self) -> Option<String> {
        let driver = fs::read_link(self.device().join("device/driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    /// Whether the device reads and writes each aligned line of 64 bytes whole.
    ///
    /// No standard guarantees this. It holds if a card accesses memory by itself, and the host's memory takes part by
    /// lines. On x86-64 it does, where DMA is coherent with the caches. For soft RoCE a processor copies, word by
    /// word at best. Only ConnectX cards are trusted, because existing systems rely on them.
    pub(crate) fn keeps_lines_whole(&self) -> bool {
        cfg!(target_arch = "x86_64") && self.driver().is_some_and(|driver| driver == "mlx5_core")
    }
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn sys() -> (tempfile::TempDir, Host) {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { sys: folder.path().to_owned(), name: "x0".to_owned() };
        for path in [
            "class/infiniband/x0/ports/1/gid_attrs/ndevs",
            "class/net/eth7",
            "drivers/mlx5_core",
            "drivers/other",
        ] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        fs::write(host.device().join("ports/1/gid_attrs/ndevs/3"), "eth7\n").unwrap();
        (folder, host)
    }

    #[test]
    fn the_mac_is_that_of_the_interface_behind_the_gid() {
        let (folder, host) = sys();
        let address = folder.path().join("class/net/eth7/address");
        fs::write(&address, "02:00:00:00:00:fe\n").unwrap();
        assert_eq!(host.mac(1, 3).unwrap(), [2, 0, 0, 0, 0, 0xfe]);
        assert!(host.mac(1, 4).unwrap_err().to_string().contains("ndevs/4"));
        for bad in ["02:00:00:00:00\n", "02:00:00:00:00:gg\n", "\n"] {
            fs::write(&address, bad).unwrap();
            assert!(host.mac(1, 3).unwrap_err().to_string().contains("expected a MAC address"), "{bad:?}");
        }
    }

    #[test]
    fn lines_are_trusted_to_known_cards_only() {
        let (folder, host) = sys();
        assert!(!host.keeps_lines_whole(), "no card: a device of software");
        fs::create_dir_all(host.device().join("device")).unwrap();
        for (driver, trusted) in [("other", false), ("mlx5_core", cfg!(target_arch = "x86_64"))] {
            let link = host.device().join("device/driver");
            let _ = fs::remove_file(&link);
            symlink(folder.path().join("drivers").join(driver), &link).unwrap();
            assert_eq!(host.keeps_lines_whole(), trusted, "{driver}");
        }
    }
}
