//! Compiles the service definition; protox is a proto compiler in Rust, so nothing has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=../../../memserver/proto");
    let files = protox::compile(["proto/tree.proto"], ["proto", "../../../memserver/proto"])?;
    tonic_prost_build::configure()
        .extern_path(".fatbtree.memserver.v2", "::fatbtree_memserver::grpc::proto")
        .compile_fds(files)?;
    Ok(())
}
