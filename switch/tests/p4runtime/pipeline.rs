//! Loading programs.

use fatbtree_p4runtime::entry::{insert, modify};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    ForwardingPipelineConfig, forwarding_pipeline_config::Cookie,
    get_forwarding_pipeline_config_request::ResponseType, set_forwarding_pipeline_config_request::Action,
};
use fatbtree_p4runtime::{ClientError, P4RuntimeClient};
use fatbtree_switch::service::Switch;

use crate::harness::{DEVICE, Harness, JSON, config, frame, info, refused};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_works_before_a_program() {
    let harness = Harness::empty().await;
    let info = info();
    let table = info.table("exact_table").expect("there");
    let client = harness.primary(1).await;
    assert_eq!(client.pipeline(ResponseType::All).await.expect("answers"), None);
    assert!(matches!(client.p4info().await, Err(ClientError::NoPipeline { device_id: DEVICE })));
    assert_eq!(refused(client.read_table(table, false).await).code(), Code::FailedPrecondition);
    assert_eq!(
        refused(client.write([insert(table.entry().build().unwrap_or_default())]).await).code(),
        Code::FailedPrecondition
    );
    // VERIFY changes nothing.
    client.set_pipeline_with(Action::Verify, Some(config())).await.expect("a sound program");
    assert_eq!(client.pipeline(ResponseType::All).await.expect("answers"), None);
    assert_eq!(refused(client.set_pipeline_with(Action::Commit, None).await).code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_switch_tells_its_program() {
    let (_harness, client) = Harness::loaded().await;
    let stored = ForwardingPipelineConfig { cookie: Some(Cookie { cookie: 42 }), ..config() };
    client.set_pipeline_with(Action::VerifyAndCommit, Some(stored.clone())).await.expect("sound");
    assert_eq!(client.pipeline(ResponseType::All).await.expect("answers"), Some(stored.clone()));
    let cookie = client.pipeline(ResponseType::CookieOnly).await.expect("answers").expect("loaded");
    assert_eq!(
        cookie,
        ForwardingPipelineConfig { cookie: stored.cookie, ..ForwardingPipelineConfig::default() }
    );
    assert_eq!(client.p4info().await.expect("loaded").p4info(), info().p4info());
    let version = client.capabilities().await.expect("answers").p4runtime_api_version;
    assert!(version.starts_with("1."), "{version}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_programs_are_refused_with_the_reason() {
    let (harness, client) = Harness::loaded().await;
    let set = |config| client.set_pipeline_with(Action::VerifyAndCommit, config);
    let status = refused(set(None).await);
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    for (json, p4info, word) in [
        ("{".to_owned(), info().p4info().clone(), "BMv2"),
        (
            JSON.replace("\"name\": \"ingress.lpm_table\"", "\"name\": \"ingress.other\""),
            info().p4info().clone(),
            "lpm_table",
        ),
        (JSON.to_owned(), wider(), "range_table"),
    ] {
        let config = ForwardingPipelineConfig {
            p4info: Some(p4info),
            p4_device_config: json.into_bytes(),
            cookie: None,
        };
        let status = refused(set(Some(config)).await);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(word), "`{word}` is not in: {}", status.message());
    }
    let status = refused(client.set_pipeline_with(Action::Unspecified, Some(config())).await);
    assert_eq!(status.code(), Code::InvalidArgument);
    // The old program still runs.
    assert!(client.pipeline(ResponseType::CookieOnly).await.expect("answers").is_some());
    // And only the primary may change it.
    let other = harness.client().await;
    assert_eq!(
        refused(other.set_pipeline(info().p4info().clone(), Vec::new()).await).code(),
        Code::PermissionDenied
    );
    let stranger = P4RuntimeClient::connect(&harness.address, DEVICE + 1).await.expect("the server runs");
    assert_eq!(refused(stranger.pipeline(ResponseType::All).await).code(), Code::NotFound);
    assert_eq!(refused(stranger.read(Vec::new()).await).code(), Code::NotFound);
    assert_eq!(refused(stranger.capabilities().await).code(), Code::NotFound);
}

/// A program's needs are known before it is loaded: one that cannot run here is refused by VERIFY, and the
/// switch lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_wants_too_much_memory_is_refused() {
    let (_harness, client) = Harness::loaded().await;
    for (from, to, words) in [
        (
            "\"size\": 4,",
            "\"size\": 4611686018427387904,",
            ["register `ingress.last_kind`", "bytes of memory"],
        ),
        ("\"size\": 8,", "\"size\": 4611686018427387904,", ["counter `ingress.seen`", "bytes of memory"]),
        (
            "\"max_size\": 200000,",
            "\"max_size\": 4611686018427387904,",
            ["table `ingress.exact_table`", "bytes"],
        ),
    ] {
        let json = JSON.replacen(from, to, 1);
        assert_ne!(json, JSON);
        let config = ForwardingPipelineConfig { p4_device_config: json.into_bytes(), ..config() };
        for action in [Action::Verify, Action::VerifyAndCommit] {
            let status = refused(client.set_pipeline_with(action, Some(config.clone())).await);
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(words.iter().all(|word| status.message().contains(word)), "{}", status.message());
        }
    }
    assert!(client.p4info().await.is_ok(), "the old program still runs");
}

fn wider() -> fatbtree_p4runtime::config::P4Info {
    let mut p4info = info().p4info().clone();
    let table = p4info
        .tables
        .iter_mut()
        .find(|table| table.preamble.as_ref().is_some_and(|preamble| preamble.name.ends_with("range_table")));
    table.expect("there").match_fields[1].bitwidth = 17;
    p4info
}

#[tokio::test(flavor = "multi_thread")]
async fn reconciling_keeps_state_and_committing_clears_it() {
    let (harness, client) = Harness::loaded().await;
    let info = info();
    let table = info.table("exact_table").expect("there");
    let (dst, forward) =
        (table.field("dst").expect("there"), table.action("forward_counted").expect("there"));
    let keyless = info.table("keyless").expect("there");
    let entry = table.entry().exact(dst, 5).action(forward, &[7]).build().expect("legal");
    let default = keyless.default_entry(keyless.action("forward").expect("there"), &[3]).expect("legal");
    client.write([insert(entry), modify(default.clone())]).await.expect("legal");
    let sent = harness.on_switch(|switch| {
        let mut output = fatbtree_switch::Output::new();
        switch.handle_frame(0, 1, &frame(5, 6, 7), &mut output);
        output.iter().map(|(port, bytes)| (port, bytes.len())).collect::<Vec<_>>()
    });
    assert_eq!(sent, [(7, 64)]);
    let before = client.read_table(table, true).await.expect("readable");
    assert_eq!(before[0].counter_data.map(|data| (data.packet_count, data.byte_count)), Some((1, 64)));

    client.set_pipeline_with(Action::ReconcileAndCommit, Some(config())).await.expect("the same program");
    assert_eq!(client.read_table(table, true).await.expect("readable"), before);
    assert_eq!(client.read_default(keyless).await.expect("readable"), Some(default));

    client.set_pipeline_with(Action::VerifyAndCommit, Some(config())).await.expect("the same program");
    assert_eq!(client.read_table(table, true).await.expect("readable"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_program_takes_writes_and_runs_on_commit() {
    let (harness, client) = Harness::loaded().await;
    let info = info();
    let keyless = info.table("keyless").expect("there");
    let default = |port| {
        modify(keyless.default_entry(keyless.action("forward").expect("there"), &[port]).expect("legal"))
    };
    let port = |harness: &Harness| {
        harness.on_switch(|switch| {
            let mut output = fatbtree_switch::Output::new();
            switch.handle_frame(0, 1, &frame(1, 2, 3), &mut output);
            output.iter().map(|(port, _)| port).collect::<Vec<_>>()
        })
    };
    client.write([default(4)]).await.expect("legal");
    client.set_pipeline_with(Action::VerifyAndSave, Some(config())).await.expect("sound");
    client.write([default(5)]).await.expect("legal");
    assert_eq!(port(&harness), [4], "the old program forwards until COMMIT");
    let status = refused(client.set_pipeline_with(Action::Commit, Some(config())).await);
    assert_eq!(status.code(), Code::InvalidArgument);
    client.set_pipeline_with(Action::Commit, None).await.expect("saved before");
    assert_eq!(port(&harness), [5]);
}

/// Each thread would have registers of its own, and packets could tell.
#[test]
fn registers_need_one_thread() {
    let status = Switch::with_pipes(DEVICE, 2).load(config()).expect_err("it has registers");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("one thread"), "{status}");
    Switch::with_pipes(DEVICE, 1).load(config()).expect("sound");
}
