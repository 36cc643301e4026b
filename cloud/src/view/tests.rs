//! Nothing at the socket `view` changes anything, and nothing there is a secret.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use http::StatusCode;
use proto::admin::view::{
    CallsPage, ClaimPage, ExplainAnswer, ExplainQuery, Found, GroupValues, GroupsOf, NodeOf,
    NodePage, PATHS, TextOf, VolumeOf, VolumePage, WATCH,
};
use proto::host::tasks::Tasks;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::server::ViewServer;
use crate::admin::admin_state::AdminState;
use crate::admin::tests::{admin_state, refuse};
use crate::state::record::{Claim, Home, Node};

/// The paths in the source of the admin commands.
fn admin_paths() -> BTreeSet<String> {
    fn look(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let words = text.split('"').skip(1).step_by(2);
            let allowed = |c: char| c.is_ascii_lowercase() || "/-_".contains(c);
            let is_path = |word: &&str| word.starts_with('/') && word.chars().all(allowed);
            found.extend(words.filter(is_path).map(str::to_owned));
        }
    }
    let mut found = BTreeSet::new();
    look(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin"), &mut found);
    found
}

/// A server over a node with a volume, a refused create and a join token.
async fn server(tasks: &Tasks) -> (Arc<AdminState>, ViewServer, String) {
    let state = admin_state(tasks);
    let written = state.store.write(|txn| {
        txn.set_node(&"n1".parse().unwrap(), Some(Node { since: 1, ..Node::default() }));
        let [namespace, name, volume] = ["shop", "data", "pvc-1"].map(Into::into);
        let claim = Some(Box::new(Claim { namespace, name, volume }));
        let home = Home { claim, name: Some("pvc-1".into()), ..Home::at("n1".parse().unwrap(), 1) };
        let id = proto::csi::Id::Volume("v1".into());
        txn.set_home(&"d.example".parse().unwrap(), &id, Some(home));
    });
    written.await.unwrap();
    refuse(&state, "shop/stuck", "pvc-7", "n1");
    let state = Arc::new(state);
    let secrets = state.store.secrets().await.unwrap();
    let key: String = secrets.resets.expose().iter().map(|byte| format!("{byte:02x}")).collect();
    (state.clone(), ViewServer::new(state, tasks.clone()), key)
}

/// Differs after any change of a record.
fn fingerprint(state: &AdminState) -> String {
    state.store.read(|known| {
        let drivers: Vec<_> = known.drivers().values().map(|of| of.changes()).collect();
        let counts = (known.epoch(), known.usage_of_all(), known.leader_epoch());
        format!("{:?} {drivers:?} {counts:?} {:?}", known.nodes(), known.trust())
    })
}

async fn ask<T: DeserializeOwned>(server: &ViewServer, path: &str, asked: &impl Serialize) -> T {
    let answer = server.answer(path, &serde_json::to_vec(asked).unwrap()).await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

#[tokio::test]
async fn every_admin_command_is_refused_at_the_socket_view() {
    let tasks = Tasks::default();
    let (state, server, _) = server(&tasks).await;
    let paths = admin_paths();
    assert!(paths.len() >= 25, "the paths of the commands are not found: {paths:?}");
    let before = fingerprint(&state);
    for path in &paths {
        for body in [&b"{}"[..], br#"{"node": "n1"}"#, br#"{"name": "n1"}"#] {
            let refused = server.answer(path, body).await;
            assert!(matches!(refused, Err((StatusCode::NOT_FOUND, _))), "{path}: {refused:?}");
        }
    }
    assert_eq!(fingerprint(&state), before);
}

#[tokio::test]
async fn the_answers_change_nothing_and_have_no_secret() {
    let tasks = Tasks::default();
    let (state, server, key) = server(&tasks).await;
    let before = fingerprint(&state);
    let volume = |id: &str| VolumeOf { driver: "d.example".parse().unwrap(), id: id.into() };
    let text = |text: &str| TextOf { text: text.into() };
    let asked: [(&str, Vec<u8>); 9] = [
        (proto::admin::view::NODE, json(&NodeOf { node: "n1".parse().unwrap() })),
        (proto::admin::view::VOLUME, json(&volume("v1"))),
        (proto::admin::view::CLAIM, json(&text("shop/data"))),
        (proto::admin::view::EXPLAIN, json(&ExplainQuery::Driver("d.example".parse().unwrap()))),
        (proto::admin::view::EXPLAIN, json(&ExplainQuery::Pod("shop/web".into()))),
        (proto::admin::view::EXPLAIN, json(&ExplainQuery::Pv("pvc-1".into()))),
        (proto::admin::view::CALLS, json(&())),
        (proto::admin::view::FIND, json(&text("n1"))),
        (proto::admin::view::GROUPS, json(&GroupsOf { key: Some("zone".into()) })),
    ];
    let missing: Vec<_> =
        PATHS.iter().filter(|path| asked.iter().all(|(asked, _)| asked != *path)).collect();
    assert_eq!(missing, [&WATCH], "the test asks for all but the stream");
    let mut all = String::new();
    for (path, body) in &asked {
        let answer = server.answer(path, body).await.unwrap();
        all.push_str(std::str::from_utf8(&answer).unwrap());
    }
    let stream = super::hub::ViewHub::new(state.clone());
    let line = Arc::new(stream).watch().next().await.unwrap();
    all.push_str(std::str::from_utf8(&line).unwrap());
    assert!(all.contains("n1") && all.contains("pvc-1"), "{all}");
    for secret in [&*key, "secret", "token", "PRIVATE"] {
        assert!(!all.contains(secret), "{secret} is in {all}");
    }
    assert_eq!(fingerprint(&state), before);
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

#[tokio::test]
async fn each_answer_is_what_the_admin_commands_and_explain_say() {
    use proto::admin::view;
    let tasks = Tasks::default();
    let (state, server, _) = server(&tasks).await;
    let node: NodePage = ask(&server, view::NODE, &NodeOf { node: "n1".parse().unwrap() }).await;
    assert!(node.explanation.text.contains("node n1 has had no link"), "{node:?}");
    assert_eq!((node.volumes.len(), node.has_more, node.calls.len()), (1, false, 1));
    let of = |id: &str| VolumeOf { driver: "d.example".parse().unwrap(), id: id.into() };
    let volume: VolumePage = ask(&server, view::VOLUME, &of("v1")).await;
    assert_eq!(volume.facts.unwrap().claim, Some(("shop".into(), "data".into())));
    let refused: VolumePage = ask(&server, view::VOLUME, &of("pvc-7")).await;
    assert!(refused.explanation.text.ends_with("UNAVAILABLE: node n1 has no link"));
    let claim: ClaimPage = ask(&server, view::CLAIM, &TextOf { text: "shop/stuck".into() }).await;
    let subject = crate::explain::subject::Subject::Pvc("shop/stuck".parse().unwrap());
    let verdict = state.explain(&subject).await.verdict;
    assert_eq!((claim.explanation.text, claim.explanation.next), (verdict.text, verdict.next));
    assert_eq!(claim.volume.unwrap().id, "pvc-7");
    let calls: CallsPage = ask(&server, view::CALLS, &()).await;
    assert_eq!((calls.kept, calls.failures.len(), calls.latencies.len()), (1, 1, 1));
    let found: Found = ask(&server, view::FIND, &TextOf { text: "shop/stuck".into() }).await;
    assert_eq!(found.hits.len(), 1);
    let groups: GroupValues = ask(&server, view::GROUPS, &GroupsOf { key: None }).await;
    assert!(groups.keys.is_empty());
    let driver = ExplainQuery::Driver("d.example".parse().unwrap());
    let explained: ExplainAnswer = ask(&server, view::EXPLAIN, &driver).await;
    assert!(explained.text.contains("no node with driver d.example has ever linked"));
    for (path, body) in [
        (view::NODE, json(&NodeOf { node: "other".parse().unwrap() })),
        (view::CLAIM, json(&TextOf { text: "Shop/data".into() })),
        (view::EXPLAIN, json(&ExplainQuery::Pod("web".into()))),
    ] {
        let refused = server.answer(path, &body).await;
        assert!(matches!(refused, Err((StatusCode::NOT_FOUND, _))), "{path}: {refused:?}");
    }
    let bad = server.answer(view::NODE, b"{\"nod\": 1}").await;
    assert!(matches!(bad, Err((StatusCode::BAD_REQUEST, _))), "{bad:?}");
}
