//! Compiles the shim when the feature `ibverbs` wants it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "ibverbs")]
    shim();
}

#[cfg(feature = "ibverbs")]
fn shim() {
    println!("cargo::rerun-if-changed=shim/shim.c");
    let compiled = cc::Build::new()
        .file("shim/shim.c")
        .std("c11")
        .define("_DEFAULT_SOURCE", None)
        .try_compile("fatbtree_shim");
    if let Err(error) = compiled {
        println!("cargo::error=feature ibverbs: the shim over libibverbs does not compile: {error}");
        println!(
            "cargo::error=it needs a C compiler and rdma-core 33 or later with its headers: apt-get install gcc libc6-dev libibverbs-dev"
        );
        return;
    }
    println!("cargo::rustc-link-lib=ibverbs");
}
