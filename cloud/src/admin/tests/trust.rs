//! Tests of tokens and revocations.

use std::sync::Arc;

use http_body_util::BodyExt;
use proto::host::tasks::Tasks;
use proto::link::tls::Files;
use proto::names::certificate::{Serial, Subject};
use serde::Serialize;
use serde_json::{Value, json};

use crate::admin::admin_state::AdminState;
use crate::admin::server::answer;
use crate::admin::tests::admin_state;
use crate::nodes::links::Links;
use crate::pki::enrolment::Enrolment;
use crate::pki::issuer::DAY;
use crate::pki::issuer::tests::intermediate;
use crate::pki::issuers::{CaSettings, Issuers};
use crate::state::record::Node;

/// The state of a csi-cloud that issues certificates.
fn with_ca(tasks: &Tasks) -> AdminState {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key, ca) = intermediate(&dir);
    let settings =
        CaSettings { cert, key, node_life: DAY * 30, cloud_days: 90, renew_after_end: DAY };
    let tls = Files { ca, cert: "x".into(), key: "y".into() };
    let issuers = Issuers::open(settings, &tls).unwrap();
    let state = admin_state(tasks);
    let enrolment = Arc::new(Enrolment::new(state.store.clone(), Some(issuers)));
    let links = Links::new(state.store.clone(), tasks.clone(), crate::lease::answer::answer);
    let advertise = Some("wss://cloud.example:7443".parse().unwrap());
    AdminState { links: Arc::new(links.enrolling(enrolment)), advertise, ..state }
}

/// The answer to a command, or the reason of its refusal.
async fn ask(state: &AdminState, path: &str, body: impl Serialize) -> Result<Value, String> {
    let body = serde_json::to_vec(&body).unwrap();
    let response = answer(state, path, &body).await.map_err(|refused| refused.text)?;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Ok(serde_json::from_slice(&body).unwrap())
}

async fn create(state: &AdminState, node: &str) -> Result<Value, String> {
    ask(state, "/token/create", json!({"node": node, "ttl_s": 3600})).await
}

#[tokio::test]
async fn a_token_is_shown_once_with_the_command_that_uses_it() {
    let tasks = Tasks::default();
    let state = with_ca(&tasks);
    let created = create(&state, "n1").await.unwrap();
    let token = created["token"].as_str().unwrap();
    let command = created["command"].as_str().unwrap();
    let piped = format!("printf %s {token} | ");
    let join = command.strip_prefix(&*piped).unwrap();
    let expected = "csi-edge join --cloud wss://cloud.example:7443 --ca-hash sha256:";
    assert!(join.starts_with(expected) && join.ends_with(" --token-file -"), "{command}");
    assert!(!join.contains(token), "each user of the node sees the arguments");
    let listed = ask(&state, "/tokens", json!({})).await.unwrap();
    assert_eq!(listed[0]["state"], "open");
    assert_eq!(listed[0]["id"], created["id"]);
    let secret = token.split_once('.').unwrap().1;
    assert!(!listed.to_string().contains(secret));
    let kept = state.store.read(|state| format!("{:?}", state.trust()));
    assert!(!kept.contains(secret), "only the hash is kept");
    let revoke = json!({"id": created["id"]});
    let done = ask(&state, "/token/revoke", &revoke).await.unwrap();
    assert!(done["text"].as_str().unwrap().contains("of n1 is revoked"), "{done}");
    assert!(ask(&state, "/token/revoke", &revoke).await.unwrap_err().contains("there is no token"));
}

#[tokio::test]
async fn a_token_that_could_not_be_used_is_not_made() {
    let tasks = Tasks::default();
    let state = with_ca(&tasks);
    for (body, said) in [
        (json!({"node": "n1", "ttl_s": 59}), "1 minute to 7 days"),
        (json!({"node": "n1", "ttl_s": 604_801}), "1 minute to 7 days"),
        (json!({"node": "N 1", "ttl_s": 60}), "is no node name"),
        (json!({"node": "n1", "ttl_s": 60, "cloud": "quic://h:1"}), "wss://"),
        (json!({"node": "n1", "ttl_s": 60, "cloud": "h"}), "--cloud"),
    ] {
        let refused = ask(&state, "/token/create", body).await.unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
    let removed = Some(Node { since: 1, removed: Some(2), ..Node::default() });
    state.store.write(|txn| txn.set_node(&"n1".parse().unwrap(), removed)).await.unwrap();
    let refused = create(&state, "n1").await.unwrap_err();
    assert!(refused.contains("node admit n1"), "{refused}");
    ask(&state, "/node/admit", json!({"node": "n1"})).await.unwrap();
    create(&state, "n1").await.unwrap();
    let without = AdminState { advertise: None, ..with_ca(&tasks) };
    let refused = create(&without, "n1").await.unwrap_err();
    assert!(refused.contains("--cloud"), "{refused}");
    let advertise = Some("wss://h:1".parse().unwrap());
    let without = AdminState { advertise, ..admin_state(&tasks) };
    let refused = create(&without, "n1").await.unwrap_err();
    assert!(refused.contains("[ca]"), "{refused}");
}

#[tokio::test]
async fn what_was_revoked_counts_no_more_and_admitting_does_not_undo_it() {
    let tasks = Tasks::default();
    let state = with_ca(&tasks);
    let node = || "n1".parse().unwrap();
    let linked = Some(Node { since: 1, ..Node::default() });
    state.store.write(move |txn| txn.set_node(&node(), linked)).await.unwrap();
    create(&state, "n1").await.unwrap();
    let serial = Serial::of(&[7]);
    for name in [json!({"node": "n1"}), json!({"front": "n1"})] {
        let done = ask(&state, "/node/revoke", json!({"name": name})).await.unwrap();
        assert_eq!(done["done"], true);
    }
    ask(&state, "/node/admit", json!({"node": "n1"})).await.unwrap();
    for subject in [Subject::Node(node()), Subject::Front("n1".parse().unwrap())] {
        assert!(state.store.read(|state| state.trust().is_revoked(&subject, &serial)));
    }
    let other = Subject::Node("n2".parse().unwrap());
    assert!(!state.store.read(|state| state.trust().is_revoked(&other, &serial)));
    let nodes = ask(&state, "/nodes", json!({})).await.unwrap();
    assert_eq!(nodes["items"][0]["state"], "revoked");
    let listed = ask(&state, "/tokens", json!({})).await.unwrap();
    assert_eq!(listed[0]["state"], "void", "the token is older than the revocation");
    let created = create(&state, "n1").await.unwrap();
    let listed = ask(&state, "/tokens", json!({})).await.unwrap();
    let view =
        |id: &Value| listed.as_array().unwrap().iter().find(|token| token["id"] == *id).cloned();
    assert_eq!(view(&created["id"]).unwrap()["state"], "open");
}
