//! etcd with users and with TLS.

use std::path::Path;

use prost::Message;
use proto::host::publish::{Existing, publish};
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::*;
use crate::etcd::client::Client;
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::etcd::settings::EtcdSettings;
use crate::pki::ca;
use crate::state::store::etcd_at::EtcdAt;

/// A user, or a user and a role or password.
#[derive(Clone, PartialEq, Message)]
struct User {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    other: String,
}

/// An answer, of which nothing is read.
#[derive(Clone, PartialEq, Message)]
struct Answer {}

async fn ask(server: &EtcdServer, method: &'static str, [name, other]: [&str; 2]) {
    let mut etcd = Grpc::new(server.channel());
    etcd.ready().await.unwrap();
    let user = User { name: name.into(), other: other.into() };
    let codec = ProstCodec::<User, Answer>::default();
    let path = http::uri::PathAndQuery::from_static(method);
    let _: tonic::Response<Answer> =
        etcd.unary(tonic::Request::new(user), path, codec).await.unwrap();
}

fn with_password(server: &EtcdServer, dir: &Path, password: &str) -> Client {
    let path = dir.join(password);
    publish(&path, format!("{password}\n").as_bytes(), 0o600, Existing::Replace).unwrap();
    let user = (Some("root".to_owned()), Some(path));
    let settings = EtcdSettings::of(None, (None, None), user).unwrap();
    EtcdAt { settings, ..server.at("edge-csi") }.client().unwrap()
}

#[tokio::test]
async fn a_token_is_renewed_and_a_wrong_password_is_told_apart() {
    let Some(mut server) = EtcdServer::start(&[]) else { return };
    server.ready().await;
    let dir = tempfile::tempdir().unwrap();
    let client = with_password(&server, dir.path(), "secret");
    // It asks for no password yet.
    client.range(request::get(b"x")).await.unwrap();
    ask(&server, "/etcdserverpb.Auth/UserAdd", ["root", "secret"]).await;
    ask(&server, "/etcdserverpb.Auth/UserGrantRole", ["root", "root"]).await;
    ask(&server, "/etcdserverpb.Auth/AuthEnable", ["", ""]).await;
    client.range(request::get(b"x")).await.unwrap();
    let wrong = with_password(&server, dir.path(), "wrong");
    let refused = wrong.range(request::get(b"x")).await;
    assert!(matches!(refused, Err(EtcdError::Auth(_))));
    let refused = server.client().range(request::get(b"x")).await;
    assert!(matches!(refused, Err(EtcdError::Token(_))), "who gives no password");
    // It has forgotten all tokens.
    server.restart(&[]);
    soon("it answers", async {
        while let Err(error) = client.range(request::get(b"x")).await {
            assert!(!error.is_refusal(), "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn both_ends_show_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    ca::init(dir.path(), &["127.0.0.1".to_owned()], 1).unwrap();
    ca::issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap();
    let [ca, cert, key] =
        ["ca.crt", "cloud.crt", "cloud.key"].map(|name| at(name).display().to_string());
    let options =
        ["--trusted-ca-file", &ca, "--cert-file", &cert, "--key-file", &key, "--client-cert-auth"];
    let Some(server) = EtcdServer::start_secured(&options) else { return };
    let settings = |identity| EtcdSettings::of(Some(at("ca.crt")), identity, (None, None)).unwrap();
    let client = |settings| EtcdAt { settings, ..server.at("edge-csi") }.client().unwrap();
    let known = client(settings((Some(at("n1.crt")), Some(at("n1.key")))));
    soon("it answers", async {
        while known.range(request::get(b"x")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let unknown = client(settings((None, None)));
    for (client, what) in [(unknown, "without a certificate"), (server.client(), "without TLS")] {
        let refused = client.range(request::get(b"x")).await.map(drop);
        assert!(matches!(refused, Err(EtcdError::Lost(_))), "{what}: {refused:?}");
    }
    // It still answers who shows one.
    known.range(request::get(b"x")).await.unwrap();
}
