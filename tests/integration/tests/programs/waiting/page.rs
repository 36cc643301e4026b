//! The page over real sockets: who is let in by TLS, and by which files.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use harness::stand::{Cloud, Stand};
use harness::wait::{START, STOP, until};
use harness::world::DRIVER;
use http::header::{AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::host::publish::{Existing, publish};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A CA for people.
fn people() -> anyhow::Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// A person's certificate.
fn person(ca: &CertifiedIssuer<'static, KeyPair>) -> anyhow::Result<Shown> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["operator.example".into()])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, ca)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    Ok((vec![certificate.der().clone()], key))
}

fn write(path: &str, text: &str) -> anyhow::Result<()> {
    Ok(publish(path.as_ref(), text.as_bytes(), 0o600, Existing::Replace)?)
}

/// csi-cloud with the page at an address.
async fn cloud(stand: &Stand, page: &str, more: &[&str]) -> anyhow::Result<Cloud> {
    let more = [&["--page", page], more].concat();
    stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &more).await
}

/// The host and port of the page over TLS.
fn host(cloud: &Cloud) -> anyhow::Result<&str> {
    let host = cloud.page.as_deref().and_then(|url| url.strip_prefix("https://"));
    host.context("no page over TLS")
}

/// Connects to the page and shows this certificate. The handshake ends for the client before the
/// server has checked the certificate.
async fn connect(
    stand: &Stand,
    cloud: &Cloud,
    shown: Option<Shown>,
    alpn: &[u8],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(Path::new(&stand.pki()).join("ca.crt"))?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match shown {
        Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let tcp = TcpStream::connect(host(cloud)?).await?;
    let name = ServerName::try_from("127.0.0.1")?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, tcp).await?)
}

/// The alert with which the page refuses this certificate. Nothing is sent, so the alert arrives.
async fn alert(
    stand: &Stand,
    cloud: &Cloud,
    shown: Option<Shown>,
) -> anyhow::Result<AlertDescription> {
    let mut io = connect(stand, cloud, shown, b"http/1.1").await?;
    let read = timeout(START, io.read_u8()).await.context("the page refuses nothing")?;
    let error = read.err().context("the page sent something")?;
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) => Ok(*alert),
        _ => bail!("the connection ended without an alert: {error}"),
    }
}

/// What somebody gets who shows this certificate and token.
async fn get(
    stand: &Stand,
    cloud: &Cloud,
    shown: Option<Shown>,
    token: Option<&str>,
    alpn: &[u8],
) -> anyhow::Result<StatusCode> {
    let host = host(cloud)?;
    let io = connect(stand, cloud, shown, alpn).await?;
    let mut request = Request::get(format!("https://{host}/")).header(HOST, host);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let answer = if alpn == b"h2" {
        let (mut client, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await?;
        tokio::select! {
            answer = client.send_request(request) => answer?,
            ended = connection => { ended?; bail!("it closed the connection") }
        }
    } else {
        let (mut client, connection) = http1::handshake(TokioIo::new(io)).await?;
        tokio::select! {
            answer = client.send_request(request) => answer?,
            ended = connection => { ended?; bail!("it closed the connection") }
        }
    };
    Ok(answer.status())
}

#[tokio::test]
async fn a_token_or_a_persons_certificate_lets_in_and_a_nodes_does_not() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let [tokens, ca] = ["tokens", "people.crt"].map(|name| stand.at(name));
    write(&tokens, TOKEN)?;
    let people = people()?;
    write(&ca, &people.pem())?;
    let files = ["--page-token-file", &tokens, "--page-client-ca", &ca];
    let cloud = cloud(&stand, "https://127.0.0.1:0", &files).await?;
    for alpn in [&b"http/1.1"[..], b"h2"] {
        let open = get(&stand, &cloud, None, None, alpn).await?;
        assert_eq!(open, StatusCode::UNAUTHORIZED);
        assert_eq!(get(&stand, &cloud, None, Some(TOKEN), alpn).await?, StatusCode::OK);
        assert_eq!(get(&stand, &cloud, Some(person(&people)?), None, alpn).await?, StatusCode::OK);
        let wrong = "f".repeat(32);
        let wrong = get(&stand, &cloud, None, Some(&wrong), alpn).await?;
        assert_eq!(wrong, StatusCode::UNAUTHORIZED);
    }
    // A node's certificate is of another CA, so its handshake fails.
    stand.run("csi-cloud", &["ca", "issue", "n1", "--dir", &stand.pki()]).await?;
    let pki = stand.pki();
    let node = (
        vec![CertificateDer::from_pem_file(Path::new(&pki).join("n1.crt"))?],
        PrivateKeyDer::from_pem_file(Path::new(&pki).join("n1.key"))?,
    );
    assert_eq!(alert(&stand, &cloud, Some(node)).await?, AlertDescription::UnknownCA);

    // A token that is taken out of the file is no good a little later, and the new one is.
    let other = "e".repeat(40);
    write(&tokens, &other)?;
    until("the old token is no good", || async {
        let answer = get(&stand, &cloud, None, Some(TOKEN), b"http/1.1").await?;
        ensure!(answer == StatusCode::UNAUTHORIZED, "{answer}");
        Ok(())
    })
    .await?;
    assert_eq!(get(&stand, &cloud, None, Some(&other), b"http/1.1").await?, StatusCode::OK);
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn a_nodes_certificate_counts_for_nothing_whoever_issued_it() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let ca = stand.at("people.crt");
    // Another CA that also issues certificates of nodes.
    let other = Stand::new().await?;
    other.run("csi-cloud", &["ca", "issue", "n1", "--dir", &other.pki()]).await?;
    let pki = other.pki();
    let at = |name: &str| Path::new(&pki).join(name);
    write(&ca, &std::fs::read_to_string(at("ca.crt"))?)?;
    let cloud = cloud(&stand, "https://127.0.0.1:0", &["--page-client-ca", &ca]).await?;
    let node = (
        vec![CertificateDer::from_pem_file(at("n1.crt"))?],
        PrivateKeyDer::from_pem_file(at("n1.key"))?,
    );
    let answer = get(&stand, &cloud, Some(node), None, b"http/1.1").await?;
    assert_eq!(answer, StatusCode::UNAUTHORIZED);
    assert_eq!(alert(&stand, &cloud, None).await?, AlertDescription::CertificateRequired);
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn csi_cloud_does_not_start_with_a_page_for_everybody() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let pki_ca = format!("{}/ca.crt", stand.pki());
    let open = stand.at("open");
    publish(open.as_ref(), TOKEN.as_bytes(), 0o644, Existing::Keep)?;
    let [closed, missing] = ["closed", "missing"].map(|name| stand.at(name));
    write(&closed, TOKEN)?;
    for (page, more, why) in [
        ("https://127.0.0.1:0", vec![], "open to nobody"),
        ("https://127.0.0.1:0", vec!["--page-client-ca", &pki_ca], "also that of the nodes"),
        ("https://127.0.0.1:0", vec!["--page-token-file", &open], "chmod o-rwx"),
        ("https://127.0.0.1:0", vec!["--page-token-file", &missing], "cannot be read"),
        ("http://0.0.0.0:0", vec!["--page-token-file", &closed], "other hosts reach it"),
    ] {
        let refused = cloud(&stand, page, &more).await.err().context("it starts")?;
        assert!(format!("{refused:#}").contains(why), "{why} is not in {refused:#}");
    }
    Ok(())
}

#[tokio::test]
async fn behind_a_proxy_the_token_is_needed_all_the_same() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let tokens = stand.at("tokens");
    write(&tokens, TOKEN)?;
    let socket = stand.at("page.sock");
    let page = format!("unix:{socket}");
    let cloud = cloud(&stand, &page, &["--page-token-file", &tokens]).await?;
    for (token, expected) in [(None, StatusCode::UNAUTHORIZED), (Some(TOKEN), StatusCode::OK)] {
        let io = TokioIo::new(UnixStream::connect(&socket).await?);
        let (mut client, connection) = http1::handshake(io).await?;
        let mut request = Request::get("/").header(HOST, "page.example");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new())?;
        let asking = async {
            let answer = client.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        let (status, text) = tokio::select! {
            answered = asking => answered?,
            ended = connection => { ended?; bail!("it closed the connection") }
        };
        assert_eq!(status, expected);
        assert_eq!(text.contains("What is wrong now"), expected == StatusCode::OK, "{text}");
    }
    cloud.process.stop(STOP).await
}
