//! The page over real sockets: who is let in by TLS, and by which files.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use harness::stand::{Cloud, Page, Stand};
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

/// csi-cloud with the socket view.
async fn cloud(stand: &Stand) -> anyhow::Result<Cloud> {
    stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &["--view", &stand.view()]).await
}

/// The host and port of the page over TLS.
fn host(page: &Page) -> anyhow::Result<&str> {
    page.url.strip_prefix("https://").context("no page over TLS")
}

/// Connects to the page and shows this certificate. The handshake ends for the client before the
/// server has checked the certificate.
async fn connect(
    stand: &Stand,
    page: &Page,
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
    let tcp = TcpStream::connect(host(page)?).await?;
    let name = ServerName::try_from("127.0.0.1")?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, tcp).await?)
}

/// The alert with which the page refuses this certificate. Nothing is sent, so the alert arrives.
async fn alert(
    stand: &Stand,
    page: &Page,
    shown: Option<Shown>,
) -> anyhow::Result<AlertDescription> {
    let mut io = connect(stand, page, shown, b"http/1.1").await?;
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
    page: &Page,
    shown: Option<Shown>,
    token: Option<&str>,
    alpn: &[u8],
) -> anyhow::Result<StatusCode> {
    let host = host(page)?;
    let io = connect(stand, page, shown, alpn).await?;
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
    let cloud = cloud(&stand).await?;
    let files = ["--tokens", &tokens, "--client-ca", &ca];
    let page = stand.page("127.0.0.1:0", &files).await?;
    for alpn in [&b"http/1.1"[..], b"h2"] {
        let open = get(&stand, &page, None, None, alpn).await?;
        assert_eq!(open, StatusCode::UNAUTHORIZED);
        assert_eq!(get(&stand, &page, None, Some(TOKEN), alpn).await?, StatusCode::OK);
        assert_eq!(get(&stand, &page, Some(person(&people)?), None, alpn).await?, StatusCode::OK);
        let wrong = "f".repeat(32);
        let wrong = get(&stand, &page, None, Some(&wrong), alpn).await?;
        assert_eq!(wrong, StatusCode::UNAUTHORIZED);
    }
    // A node's certificate is of another CA, so its handshake fails.
    stand.run("csi-cloud", &["ca", "issue", "n1", "--dir", &stand.pki()]).await?;
    let pki = stand.pki();
    let node = (
        vec![CertificateDer::from_pem_file(Path::new(&pki).join("n1.crt"))?],
        PrivateKeyDer::from_pem_file(Path::new(&pki).join("n1.key"))?,
    );
    assert_eq!(alert(&stand, &page, Some(node)).await?, AlertDescription::UnknownCA);

    // A token that is taken out of the file is no good a little later, and the new one is.
    let other = "e".repeat(40);
    write(&tokens, &other)?;
    until("the old token is no good", || async {
        let answer = get(&stand, &page, None, Some(TOKEN), b"http/1.1").await?;
        ensure!(answer == StatusCode::UNAUTHORIZED, "{answer}");
        Ok(())
    })
    .await?;
    assert_eq!(get(&stand, &page, None, Some(&other), b"http/1.1").await?, StatusCode::OK);
    page.process.stop(STOP).await?;
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
    let cloud = cloud(&stand).await?;
    let page = stand.page("127.0.0.1:0", &["--client-ca", &ca]).await?;
    let node = (
        vec![CertificateDer::from_pem_file(at("n1.crt"))?],
        PrivateKeyDer::from_pem_file(at("n1.key"))?,
    );
    let answer = get(&stand, &page, Some(node), None, b"http/1.1").await?;
    assert_eq!(answer, StatusCode::UNAUTHORIZED);
    assert_eq!(alert(&stand, &page, None).await?, AlertDescription::CertificateRequired);
    page.process.stop(STOP).await?;
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn the_ca_of_the_nodes_lets_nobody_in() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let ca = format!("{}/ca.crt", stand.pki());
    let cloud = cloud(&stand).await?;
    let tokens = stand.at("tokens");
    write(&tokens, TOKEN)?;
    let page = stand.page("127.0.0.1:0", &["--client-ca", &ca, "--tokens", &tokens]).await?;
    // Before it shows anything it has read the CA of the nodes.
    let by_token = get(&stand, &page, None, Some(TOKEN), b"http/1.1").await?;
    assert_eq!(by_token, StatusCode::OK);
    let pki = stand.pki();
    let shown = (
        vec![CertificateDer::from_pem_file(Path::new(&pki).join("cloud.crt"))?],
        PrivateKeyDer::from_pem_file(Path::new(&pki).join("cloud.key"))?,
    );
    let refused = get(&stand, &page, Some(shown), None, b"http/1.1").await;
    assert!(refused.is_err() || refused.is_ok_and(|status| status == StatusCode::UNAUTHORIZED));
    page.process.stop(STOP).await?;
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn csi_page_does_not_start_for_everybody_or_nobody() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let open = stand.at("open");
    publish(open.as_ref(), TOKEN.as_bytes(), 0o644, Existing::Keep)?;
    let missing = stand.at("missing");
    for (more, why) in [
        (vec![], "open to nobody"),
        (vec!["--tokens", &*open], "chmod o-rwx"),
        (vec!["--tokens", &*missing], "cannot be read"),
        (vec!["--client-ca", &*missing], "cannot be read"),
    ] {
        let refused = stand.page("127.0.0.1:0", &more).await.err().context("it starts")?;
        assert!(format!("{refused:#}").contains(why), "{why} is not in {refused:#}");
    }
    Ok(())
}

#[tokio::test]
async fn the_page_comes_back_with_csi_cloud() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let tokens = stand.at("tokens");
    write(&tokens, TOKEN)?;
    let page = stand.page("127.0.0.1:0", &["--tokens", &tokens]).await?;
    let shown = async || get(&stand, &page, None, Some(TOKEN), b"h2").await;
    assert_eq!(shown().await?, StatusCode::SERVICE_UNAVAILABLE);
    for _ in 0..2 {
        let cloud = cloud(&stand).await?;
        until("the page is there", || async {
            let status = shown().await?;
            ensure!(status == StatusCode::OK, "{status}");
            Ok(())
        })
        .await?;
        cloud.process.stop(STOP).await?;
    }
    page.process.stop(STOP).await
}

#[tokio::test]
async fn behind_a_proxy_the_token_is_needed_all_the_same() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let tokens = stand.at("tokens");
    write(&tokens, TOKEN)?;
    let socket = stand.at("page.sock");
    let cloud = cloud(&stand).await?;
    let page = stand.page(&format!("unix:{socket}"), &["--tokens", &tokens]).await?;
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
    page.process.stop(STOP).await?;
    cloud.process.stop(STOP).await
}
