//! `packaging/`: units call the program as it is, and what the package lists is there.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::fatbtree;
use crate::common::processes::{Role, cluster_file_like};
use crate::common::repository::{read, root};

fn units() -> Vec<(String, String)> {
    let folder = fs::read_dir(root().join("packaging/systemd")).expect("a folder");
    let paths = folder.map(|entry| entry.expect("it can be read").path()).filter(|path| path.is_file());
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
    paths.map(|path| (name(&path), fs::read_to_string(&path).expect("text"))).collect()
}

/// The command line of the unit for a role of the example.
fn line(unit: &str, role: &str) -> String {
    let units = units();
    let (_, text) = units.iter().find(|(name, _)| name == unit).expect("the unit is there");
    let line =
        text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/fatbtree ")).expect("a line");
    line.replace("%i", role).replace(" $OPTIONS", "")
}

#[test]
fn units_start_the_roles_of_a_cluster() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let (file, state) = (file.to_str().expect("plain"), folder.path().to_str().expect("plain"));
    for (unit, role, ready) in [
        ("fatbtree-switch@.service", "switch-0", "waits for a controller"),
        ("fatbtree-memserver@.service", "left", "gRPC on"),
        ("fatbtree-controller.service", "controller", "controller on"),
    ] {
        let line =
            line(unit, role).replace("/etc/fatbtree/cluster.toml", file).replace("/var/lib/fatbtree", state);
        let role = Role::start(&line.split(' ').collect::<Vec<_>>());
        role.until(ready);
        assert!(role.stop("TERM").success(), "{unit}: {line}");
    }
}

/// Units are of `Type=notify`: a role tells the service manager when it is ready, by a path or an abstract name.
#[test]
fn roles_tell_systemd_that_they_are_ready() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let file = file.to_str().expect("plain");
    let path = folder.path().join("notify");
    let name = format!("fatbtree-{}", std::process::id());
    let at_path = UnixDatagram::bind(&path).expect("a socket");
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let at_name = UnixDatagram::bind_addr(&address).expect("a socket");
    let path = path.to_str().expect("plain").to_owned();
    for (socket, told, words) in [
        (&at_path, path.clone(), &["switch", "switch-0"][..]),
        (&at_name, format!("@{name}"), &["memserver", "left"]),
        (&at_path, path, &["controller"]),
    ] {
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut command = fatbtree();
        command.args(words).args(["--cluster", file]).env("NOTIFY_SOCKET", told);
        let role = Role::of(command);
        let mut message = [0; 64];
        let length = socket.recv(&mut message).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert_eq!(&message[..length], b"READY=1", "{words:?}");
        assert!(role.stop("TERM").success(), "{words:?}");
    }
    for (name, text) in units() {
        assert!(text.contains("[Service]\nType=notify\n"), "{name}");
    }
}

#[test]
fn systemd_understands_the_units() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = fatbtree().get_program().to_str().expect("a plain path").to_owned();
    for (name, text) in units() {
        let text = text.replace("ExecStart=/usr/bin/fatbtree", &format!("ExecStart={program}"));
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let common = "fatbtree-.service.d";
    fs::create_dir(folder.path().join(common)).expect("a folder");
    let from = root().join("packaging/systemd").join(common).join("common.conf");
    fs::copy(from, folder.path().join(common).join("common.conf")).expect("it is there");
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "fatbtree-switch@core-0.service", "fatbtree-memserver@left.service"]);
    command
        .arg("fatbtree-controller.service")
        .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()));
    match command.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("fatbtree"), "{said}");
        }
        Err(error) => eprintln!("SKIPPED: no systemd-analyze here: {error}"),
    }
}

/// cargo-deb replaces `target/release` by the folder of the profile; what lies in `packaging` there is made by `packaging/deb.sh`.
#[test]
fn what_the_package_lists_is_there() {
    let text = read("cli/Cargo.toml");
    let section =
        text.split("\nassets = [\n").nth(1).and_then(|rest| rest.split("\n]").next()).expect("assets");
    let script = read("packaging/deb.sh");
    for line in section.lines() {
        let path = line.trim().strip_prefix("[\"").and_then(|rest| rest.split('"').next()).expect("a path");
        if let Some(made) = path.strip_prefix("target/release/packaging/") {
            let made = made.trim_start_matches("man/*");
            assert!(script.contains(made.trim_end_matches(".gz")), "deb.sh does not make {path}");
        } else if let Some(kept) = path.strip_prefix("../") {
            let fixed = kept.split('*').next().expect("a beginning");
            assert!(root().join(fixed).exists(), "{path} is not there");
        } else {
            assert_eq!(path, "target/release/fatbtree");
        }
    }
    let container = read("packaging/Containerfile");
    assert!(container.contains("--profile dist") && script.contains("--profile dist"));
}

/// Runs a maintainer script with commands that only note how they are called. Returns these notes and what it prints.
fn script(name: &str, arguments: &[&str], commands: &[&str], root: &Path) -> (String, String) {
    let tools = root.join("tools");
    let _ = fs::remove_dir_all(&tools);
    fs::create_dir_all(&tools).expect("a folder");
    let notes = root.join("notes");
    fs::write(&notes, "").expect("a file");
    for command in commands {
        let path = tools.join(command);
        fs::write(&path, format!("#!/bin/sh\necho {command} \"$@\" >>{}\n", notes.display()))
            .expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("it is ours");
    }
    for tool in ["grep", "find", "sh"] {
        let there = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(tool));
        let there = there.iter().find(|path| path.exists()).expect("a tool of every system");
        std::os::unix::fs::symlink(there, tools.join(tool)).expect("a link");
    }
    // A system of its own, on which systemd runs.
    let text = read(Path::new("packaging/debian").join(name));
    let text = text.replace("/run/systemd/system", root.to_str().expect("a plain path"));
    let text = text.replace("\"$DPKG_ROOT/", &format!("\"{}/", root.display()));
    let path = root.join(name);
    fs::write(&path, text).expect("a file");
    let output =
        Command::new("/bin/sh").arg(&path).args(arguments).env("PATH", &tools).env("DPKG_ROOT", "").output();
    let output = output.expect("a shell");
    assert!(output.status.success(), "{name} {arguments:?}: {output:?}");
    (fs::read_to_string(notes).expect("text"), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn roles_stop_with_the_package_and_go_on_with_the_next_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    fs::create_dir_all(root.join("etc/systemd/system/multi-user.target.wants")).expect("a folder");
    fs::create_dir_all(root.join("var/lib/fatbtree")).expect("a folder");
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("a file");
    let of = |name: &str, arguments: &[&str], commands: &[&str]| script(name, arguments, commands, root);
    let systemd = ["systemctl", "systemd-sysusers"];
    let (did, _) = of("postinst", &["configure", ""], &systemd);
    assert_eq!(did, "systemd-sysusers fatbtree.conf\nsystemctl daemon-reload\n");
    // An upgrade.
    assert_eq!(of("prerm", &["upgrade", "0.2.0-1"], &systemd).0, "");
    let (did, _) = of("postinst", &["configure", "0.1.0-1"], &systemd);
    assert!(did.ends_with("systemctl daemon-reload\nsystemctl try-restart fatbtree-*.service\n"), "{did}");
    // The end.
    assert_eq!(of("prerm", &["remove"], &systemd).0, "systemctl stop fatbtree-*.service\n");
    let link = root.join("etc/systemd/system/multi-user.target.wants/fatbtree-controller.service");
    std::os::unix::fs::symlink("/usr/lib/systemd/system/fatbtree-controller.service", &link).expect("a link");
    assert_eq!(of("postrm", &["remove"], &systemd).0, "systemctl daemon-reload\n");
    assert!(link.symlink_metadata().is_ok());
    let (_, said) = of("postrm", &["purge"], &systemd);
    assert!(
        said.contains("the data in /var/lib/fatbtree stay") && link.symlink_metadata().is_err(),
        "{said}"
    );
    assert!(root.join("var/lib/fatbtree").exists());
    // Without systemd-sysusers.
    let (did, said) = of("postinst", &["configure", ""], &["systemctl", "useradd"]);
    assert!(did.starts_with("useradd --system --user-group") && said.is_empty(), "{did}{said}");
    let (_, said) = of("postinst", &["configure", ""], &["systemctl"]);
    assert!(said.contains("make the system user fatbtree"), "{said}");
    fs::write(root.join("etc/passwd"), "fatbtree:x:990:990::/var/lib/fatbtree:/usr/sbin/nologin\n")
        .expect("a file");
    let (did, said) = of("postinst", &["configure", ""], &["systemctl", "useradd"]);
    assert!(!did.contains("useradd") && said.is_empty(), "{did}{said}");
}

#[test]
fn systemd_never_gives_a_role_up_and_a_package_has_its_name_when_it_is_whole() {
    let common = root().join("packaging/systemd/fatbtree-.service.d/common.conf");
    let common = fs::read_to_string(common).expect("text");
    let unit = common.split("[Service]").next().expect("a section");
    assert!(unit.contains("[Unit]") && unit.contains("\nStartLimitIntervalSec=0\n"), "{unit}");
    let script = read("packaging/assemble_deb.py");
    assert!(script.contains("\"--build\", root, partial)") && script.contains("os.replace(partial, path)"));
}
