//! Compiles the shim when the feature `dpdk` wants it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    if let Err(error) = shim() {
        println!("cargo::error=feature dpdk: {error}");
        println!(
            "cargo::error=it needs a C compiler, pkg-config, and DPDK 22.11 or later with its headers: \
             apt-get install gcc libc6-dev pkg-config libdpdk-dev"
        );
    }
}

/// The libraries that the shim calls. Drivers are found by the EAL when a program starts.
#[cfg(feature = "dpdk")]
const LIBRARIES: [&str; 4] = ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_eal"];

#[cfg(feature = "dpdk")]
fn shim() -> Result<(), String> {
    println!("cargo::rerun-if-changed=shim/shim.c");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    pkg_config(&["--atleast-version=22.11", "libdpdk"])?;
    let mut build = cc::Build::new();
    build.file("shim/shim.c").std("gnu11").define("ALLOW_EXPERIMENTAL_API", None);
    // Its headers are not clean of these.
    build.flag_if_supported("-Wno-unused-parameter");
    // As DPDK says: with them come the processor that its inline functions are for, and its configuration.
    for flag in pkg_config(&["--cflags", "libdpdk"])?.split_whitespace() {
        build.flag(flag);
    }
    build.try_compile("fatbtree_dpdk_shim").map_err(|error| format!("the shim does not compile: {error}"))?;
    for flag in pkg_config(&["--libs-only-L", "libdpdk"])?.split_whitespace() {
        println!("cargo::rustc-link-search=native={}", flag.trim_start_matches("-L"));
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib={library}");
    }
    Ok(())
}

#[cfg(feature = "dpdk")]
fn pkg_config(arguments: &[&str]) -> Result<String, String> {
    let asked = || format!("pkg-config {}", arguments.join(" "));
    let output = std::process::Command::new("pkg-config")
        .args(arguments)
        .output()
        .map_err(|error| format!("{}: {error}", asked()))?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", asked(), String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
