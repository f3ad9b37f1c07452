//! Access control between processes: certificates of the cluster are accepted, all others are refused.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::processes::{Role, bench, cluster_file};
use crate::common::{refused, run};
use fatbtree_blink_host::TreeInfo;
use fatbtree_controller::Generation;
use fatbtree_controller::grpc::{Client as ToController, ServerHello};
use fatbtree_memserver::grpc::Client as ToServer;
use fatbtree_p4runtime::P4RuntimeClient;
use fatbtree_p4runtime::client::ClientOptions;
use fatbtree_remote_memory::session_keeper::Call;
use fatbtree_topology::Cluster;
use fatbtree_trust::{CONTROLLER, OPERATOR, Trust};

/// The cluster file beside certificates that `fill` puts into a folder.
fn beside(folder: &Path, cluster: &str, fill: impl FnOnce(&Path)) -> String {
    fs::create_dir_all(folder.join("certificates")).expect("a folder");
    fill(&folder.join("certificates"));
    let file = folder.join("cluster.toml");
    fs::write(&file, cluster).expect("the file is written");
    file.to_str().expect("UTF-8").to_owned()
}

/// Certificates of `from` under other names.
fn stolen(from: &Path, names: &[(&str, &str)]) -> impl FnOnce(&Path) {
    let (from, names): (PathBuf, Vec<_>) =
        (from.into(), names.iter().map(|(is, says)| (is.to_string(), says.to_string())).collect());
    move |to| {
        fs::copy(from.join("ca.pem"), to.join("ca.pem")).expect("copied");
        for (is, says) in names {
            for end in ["pem", "key"] {
                fs::copy(from.join(format!("{is}.{end}")), to.join(format!("{says}.{end}"))).expect("copied");
            }
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn roles_with_certificates_work_and_others_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = fs::read_to_string(cluster_file(folder.path())).expect("the file");
    let text = format!("[trust]\nfolder = \"certificates\"\n\n{plain}");
    let file = folder.path().join("cluster.toml");
    fs::write(&file, &text).expect("the file is written");
    let (path, certificates) = (file.to_str().expect("UTF-8"), folder.path().join("certificates"));
    refused(&["control", "status", "--cluster", path], "topology certificates");

    let made = run(&["topology", "certificates", "--cluster", path, "--days", "40"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    refused(&["topology", "certificates", "--cluster", path], "nothing is overwritten");
    let mode = fs::metadata(certificates.join("core-0.key")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let up = Role::start(&["up", path, "--keys", "20000"]);
    up.until("ready");
    let result = bench(path, &[]);
    assert!(result["wrong"] == 0 && result["failed"] == 0, "{result}");
    let loaded = run(&["load", "--cluster", path, "--keys", "30000", "--replace"]);
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));

    // Clients without a certificate, or with one of another authority.
    let nothing = beside(&folder.path().join("nothing"), &plain, |_| {});
    refused(&["control", "status", "--cluster", &nothing], "controller");
    refused(&["load", "--cluster", &nothing, "--keys", "1000"], "memory server");
    let other = beside(&folder.path().join("other"), &text, |folder| {
        fs::remove_dir(folder).expect("it is empty");
    });
    assert!(run(&["topology", "certificates", "--cluster", &other]).status.success());
    refused(&["control", "status", "--cluster", &other], "controller");
    refused(&["bench", "--cluster", &other, "--operations", "10", "--patience", "1"], "memory server");
    // A client that believes our authority, but has a certificate of the other one: the controller refuses it.
    let half = beside(
        &folder.path().join("half"),
        &text,
        stolen(&folder.path().join("other/certificates"), &[(OPERATOR, OPERATOR)]),
    );
    fs::copy(certificates.join("ca.pem"), folder.path().join("half/certificates/ca.pem")).expect("copied");
    refused(&["control", "status", "--cluster", &half], "controller");

    // A certificate of the cluster, for something else (what services do with one is tested below, and in `trust`).
    let posing = beside(
        &folder.path().join("posing"),
        &text,
        stolen(&certificates, &[("left", OPERATOR), ("right", "client")]),
    );
    refused(
        &["control", "status", "--cluster", &posing],
        "expected the certificate of operator, found that of left",
    );
    refused(
        &["bench", "--cluster", &posing, "--operations", "10"],
        "expected the certificate of client, found that of right",
    );
    // A key that every user of the machine can read.
    let exposed =
        beside(&folder.path().join("exposed"), &text, stolen(&certificates, &[(OPERATOR, OPERATOR)]));
    let key = folder.path().join("exposed/certificates/operator.key");
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).expect("it is ours");
    refused(
        &["control", "status", "--cluster", &exposed],
        "operator.key: expected the key of operator, readable by its owner alone",
    );

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(knock(&Cluster::from_toml(&text).expect("a good file"), &certificates));
    let result = bench(path, &[]);
    assert!(result["wrong"] == 0 && result["failed"] == 0, "{result}");
}

/// What no command does.
async fn knock(cluster: &Cluster, certificates: &Path) {
    let of = |name: &str| Trust::read(certificates, name).expect("a certificate");
    // A memory server registers for another one's partition.
    let to = |name: &str| of(name).to(cluster.controller().expect("there is one"), CONTROLLER);
    let registered = async |name: &str, partition: u16| {
        let generation = Generation { number: u64::MAX, low: 0 };
        let hello = ServerHello {
            partition,
            structure: "blink".to_owned(),
            generation,
            root: 64,
            first_key: None,
            lost: false,
            connections: vec![],
        };
        let mut client = ToController::connect(to(name), PATIENCE).await.expect("it is let in");
        let (_news, mut none) = tokio::sync::mpsc::channel(1);
        client.register(hello, &mut none, |_| {}).await.expect_err("refused").to_string()
    };
    assert!(registered("right", 0).await.contains("only left may do this"));
    assert!(registered("left", 7).await.contains("no role of the cluster file has partition 7"));
    // A client opens a session for an address that is not its own.
    let left = cluster.server(0).expect("left");
    let address = cluster.tree().host(cluster.clients()[0].host).ip;
    let mut client = ToServer::connect(of("right").to(&left.grpc, &left.name)).await.expect("it is let in");
    let error = client.call::<TreeInfo>(address, Call::Open { known: None }).await;
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("only client may do this"), "{error}");
    // The server at left's address cannot pass for right.
    let elsewhere = ToServer::connect(of(OPERATOR).to(&left.grpc, "right")).await;
    assert!(elsewhere.is_err(), "left's certificate is not right's");
    // An operator programs a switch.
    let switch = &cluster.tree().switches()[0];
    let endpoint = cluster.p4runtime(switch.id);
    let options = |name: &str| {
        let mut options = ClientOptions::default();
        options.tls = of(name).tls(&switch.name());
        options
    };
    let connect = async |options| {
        let mut client =
            P4RuntimeClient::connect_with(&endpoint.address, endpoint.device_id, options).await?;
        client.become_primary(u128::MAX).await
    };
    let error = connect(options(OPERATOR)).await.expect_err("refused").to_string();
    assert!(error.contains("only controller may do this"), "{error}");
    assert!(connect(ClientOptions::default()).await.is_err(), "plaintext");
}

#[test]
fn plaintext_off_loopback_is_refused_unless_the_file_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(cluster_file(folder.path())).expect("the file");
    let file = folder.path().join("cluster.toml");
    let path = file.to_str().expect("UTF-8");
    let check = |further: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        fs::write(&file, format!("{further}\n{}", text.replacen(from, to, 1))).expect("it is written");
        run(&["topology", "check", path])
    };
    // The second is the controller's, the memory servers' come after it.
    for from in ["[p4runtime]\nhost = \"127.0.0.1", "[controller]\ngrpc = \"127.0.0.1"] {
        let to = from.replace("127.0.0.1", "10.9.0.1");
        let output = check("", from, &to);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("[trust]") && error.contains("10.9.0.1"), "{error}");
        assert!(error.contains("line "), "{error}");
        assert_eq!(output.status.code(), Some(1));
        let in_words = "[trust]\nplaintext = \"I trust everybody on this network\"";
        assert!(check(in_words, from, &to).status.success());
        assert!(check("[trust]\nfolder = \"certificates\"", from, &to).status.success());
        for bad in
            ["plaintext = \"yes\"", "", "folder = \"c\"\nplaintext = \"I trust everybody on this network\""]
        {
            let output = check(&format!("[trust]\n{bad}"), from, &to);
            assert!(String::from_utf8_lossy(&output.stderr).contains("expected one of"), "{bad}");
        }
    }
    let bad = "[trust]\nfolder = \"certificates\"";
    let output = check(bad, "name = \"left\"", "name = \"operator\"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot carry this name"));
    refused(&["switch", "--grpc", "0.0.0.0:9559"], "plaintext off loopback is refused");
}
