//! Joins a cloud with a token: asks for this node's certificate, and keeps it.

use std::path::{Path, PathBuf};
use std::vec;

use anyhow::{Context, bail};
use proto::control::certificate::Certificate;
use proto::control::hello::Refused;
use proto::control::join::{Answer, Join, Token};
use proto::link::endpoint::Endpoint;
use proto::link::tls::{Files, Pin};
use proto::link::{LinkError, NodeNetwork, join};
use proto::names::NodeName;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tracing::info;

use super::directory::Directory;
use super::request::Issued;

/// The largest token, in bytes. One of a ServiceAccount has about 1 KiB.
const MAX_TOKEN: u64 = 16 * 1024;
/// The most endpoints of a leader that are asked.
const MAX_LEADER: usize = 4;

/// A csi-cloud to ask, and the CA to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloud {
    /// A `wss://` endpoint of csi-cloud.
    pub endpoint: Endpoint,
    /// The hash of its CA.
    pub ca: Pin,
}

/// Joins by itself at start, with a token from a file that something else keeps current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Automatic {
    /// The csi-clouds to ask in order, with the CA to trust; at least one.
    pub clouds: Vec<Cloud>,
    /// The file of the token.
    pub token_file: PathBuf,
}

/// Reads a token's file.
///
/// # Errors
/// It cannot be read, or holds no token.
pub fn token(path: &Path) -> anyhow::Result<Token> {
    let reading = || format!("the token in {} cannot be read", path.display());
    let length = std::fs::metadata(path).with_context(reading)?.len();
    if length > MAX_TOKEN {
        bail!("{} has {length} bytes, and a token has at most {MAX_TOKEN}", path.display());
    }
    let text = std::fs::read_to_string(path).with_context(reading)?;
    if text.trim().is_empty() {
        bail!("{} is empty; it should hold a token", path.display());
    }
    Ok(Token::new(&text))
}

/// Asks for a certificate and keeps it; an identity in the directory is replaced.
///
/// # Errors
/// The cloud is not the right one, refuses, or its certificate cannot be used or kept. The
/// directory is then unchanged.
pub async fn join(
    cloud: &Cloud,
    token: Token,
    directory: &Directory,
    network: &NodeNetwork,
) -> anyhow::Result<NodeName> {
    let request = directory.request()?;
    let question = Join { token, csr: request.csr()? };
    let asking = || format!("cannot join {}", cloud.endpoint);
    let certificate = ask(cloud, &question, network).await.with_context(asking)?;
    let Issued { pem, node, .. } =
        request.issued(&certificate, &directory.files()).with_context(asking)?;
    let pinned = CertificateDer::pem_slice_iter(&pem.ca)
        .filter_map(Result::ok)
        .any(|ca| Pin::of(&ca) == cloud.ca);
    if !pinned {
        bail!("{} does not trust the CA with the hash {} itself", cloud.endpoint, cloud.ca);
    }
    directory.write(&pem)?;
    Ok(node)
}

/// Asks the cloud. If it follows another one, that is asked, too: whoever it is has to show a
/// certificate of the same CA first. The refusal of one that leads is final.
async fn ask(
    cloud: &Cloud,
    question: &Join,
    network: &NodeNetwork,
) -> Result<Certificate, LinkError> {
    let mut endpoint = cloud.endpoint.clone();
    let mut leaders: Option<vec::IntoIter<Endpoint>> = None;
    loop {
        let why = match join::ask(&endpoint, cloud.ca, question, network).await {
            Ok(Answer::Certificate(certificate)) => return Ok(certificate),
            Ok(Answer::Refused(Refused { reason, leader, .. })) => {
                let why = LinkError::NotJoined(reason);
                let Some(urls) = leader else { return Err(why) };
                leaders.get_or_insert_with(|| leader_endpoints(&urls));
                why
            }
            Err(error) => error,
        };
        let Some(leader) = leaders.as_mut().and_then(Iterator::next) else { return Err(why) };
        info!(cloud = %cloud.endpoint, %leader, "the cloud follows; asking its leader");
        endpoint = leader;
    }
}

/// The first endpoints of these that take tokens.
fn leader_endpoints(urls: &[String]) -> vec::IntoIter<Endpoint> {
    let endpoints = urls.iter().filter_map(|url| url.parse().ok());
    let takes_tokens = |endpoint: &Endpoint| endpoint.transport.takes_tokens();
    endpoints.filter(takes_tokens).take(MAX_LEADER).collect::<Vec<_>>().into_iter()
}

impl Automatic {
    /// Asks this csi-cloud for an identity.
    ///
    /// # Errors
    /// As for [`join()`], or the token cannot be read.
    pub(super) async fn once(
        &self,
        cloud: &Cloud,
        directory: &Directory,
        network: &NodeNetwork,
    ) -> anyhow::Result<NodeName> {
        join(cloud, token(&self.token_file)?, directory, network).await
    }
}

/// Advice for the operator after joining.
pub fn advice(cloud: &Cloud, directory: &Directory, node: &NodeName) -> String {
    let Files { cert, ca, .. } = directory.files();
    let dir = directory.path().display();
    format!(
        "joined as node {node}; wrote {} and {}\n\
         csi-edge renews the certificate by itself. Start it with\n\n  \
         csi-edge serve --identity {dir} --cloud {} --driver NAME=SOCKET\n\n\
         or write into its configuration file (edge.toml)\n\n  \
         identity = \"{dir}\"",
        cert.display(),
        ca.display(),
        cloud.endpoint
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::directory::IdentityState;
    use crate::identity::source::IdentitySource;
    use crate::identity::test_ca::Ca;
    use proto::control::hello::PROTOCOL;
    use proto::host::chain;
    use proto::host::publish::{Existing, publish};
    use proto::link::tls::{join_config, server_config};
    use proto::link::{KeepAlive, ws};
    use std::time::SystemTime;
    use tokio::net::TcpListener;

    /// A cloud's door, which answers those who join.
    struct Door(TcpListener, ws::Acceptor);

    impl Door {
        async fn open(ca: &Ca) -> (Self, Cloud) {
            let credentials = ca.cloud();
            let tls = server_config(&credentials, ws::ALPN).unwrap();
            let acceptor = ws::Acceptor::new(tls, KeepAlive::default())
                .with_join(join_config(&credentials, join::ALPN).unwrap());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let endpoint = format!("wss://localhost:{port}").parse().unwrap();
            (Self(listener, acceptor), Cloud { endpoint, ca: Pin::of(&ca.der()) })
        }

        async fn answer(&self, answer: impl FnOnce(&Join) -> Answer) {
            let (tcp, _) = self.0.accept().await.unwrap();
            let greeted = self.1.greet(Box::new(tcp)).await.unwrap();
            let ws::Accepted::Asker(asker) = self.1.accept(greeted).await.unwrap() else {
                panic!("nobody asks")
            };
            let answer = answer(&asker.join);
            asker.reply(&answer).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_token_gives_an_identity_and_a_refusal_leaves_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let (door, cloud) = Door::open(&ca).await;
        let directory = Directory::new(dir.path());
        let tcp = ws::tcp();
        let asked = join(&cloud, Token::new("t"), &directory, &tcp);
        let refusing = door.answer(|_| Answer::refused("the token has expired"));
        let error = tokio::join!(asked, refusing).0.unwrap_err();
        assert!(chain(error.as_ref()).contains("the token has expired"), "{error:?}");
        let key = directory.request().unwrap().key();

        let issuing = door.answer(|question| {
            assert_eq!(question.token.reveal(), "t");
            Answer::Certificate(ca.issue(&question.csr, "edge-csi://node/n1", 3))
        });
        let asked = join(&cloud, Token::new("t"), &directory, &tcp);
        let node = tokio::join!(asked, issuing).0.unwrap();
        let advice = advice(&cloud, &directory, &node);
        assert!(advice.contains("node n1") && advice.contains("serve --identity"), "{advice}");
        assert!(matches!(directory.state(SystemTime::now()), IdentityState::Valid { days: 2 }));
        let identity = std::fs::read_to_string(directory.files().key).unwrap();
        assert!(identity.contains(&key), "the refused request's key was used again");

        // What cannot be used does not replace it.
        let issuing = door.answer(|question| {
            let theirs = Ca::new().issue(&question.csr, "edge-csi://node/n1", 3);
            Answer::Certificate(theirs)
        });
        let asked = join(&cloud, Token::new("t"), &directory, &tcp);
        let error = tokio::join!(asked, issuing).0.unwrap_err().to_string();
        assert!(error.contains("does not trust the CA with the hash"), "{error}");
        assert_eq!(std::fs::read_to_string(directory.files().key).unwrap(), identity);
    }

    fn follows(leader: &[&Cloud]) -> Answer {
        let mut urls = vec!["quic://localhost:1".to_owned(), "nonsense".to_owned()];
        urls.extend(leader.iter().map(|cloud| cloud.endpoint.to_string()));
        let reason = "it follows b".into();
        Answer::Refused(Refused { protocol: PROTOCOL, reason, leader: Some(urls) })
    }

    #[tokio::test]
    async fn a_cloud_that_follows_names_the_one_that_is_asked_next() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let (follower, cloud) = Door::open(&ca).await;
        let (leader, leading) = Door::open(&ca).await;
        let (stranger, strange) = Door::open(&Ca::new()).await;
        let directory = Directory::new(dir.path());
        let tcp = ws::tcp();
        let error = tokio::join!(
            join(&cloud, Token::new("t"), &directory, &tcp),
            follower.answer(|_| follows(&[]))
        );
        assert!(chain(error.0.unwrap_err().as_ref()).contains("it follows b"));
        let unseen = async {
            let (tcp, _) = stranger.0.accept().await.unwrap();
            let greeted = stranger.1.greet(Box::new(tcp)).await.unwrap();
            let refused = stranger.1.accept(greeted).await.err().expect("it got the question");
            let text = refused.to_string();
            assert!(matches!(refused, LinkError::Tls(_)), "{text}");
        };
        let issuing = leader.answer(|question| {
            Answer::Certificate(ca.issue(&question.csr, "edge-csi://node/n1", 3))
        });
        let joined = tokio::join!(
            join(&cloud, Token::new("t"), &directory, &tcp),
            follower.answer(|_| follows(&[&strange, &leading])),
            unseen,
            issuing
        );
        assert_eq!(joined.0.unwrap().as_str(), "n1");
    }

    #[tokio::test]
    async fn the_refusal_of_the_leader_is_final() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let (follower, cloud) = Door::open(&ca).await;
        let (leader, leading) = Door::open(&ca).await;
        // Nobody listens there any more.
        let gone = Door::open(&ca).await.1;
        let directory = Directory::new(dir.path());
        let tcp = ws::tcp();
        let asked = tokio::join!(
            join(&cloud, Token::new("t"), &directory, &tcp),
            follower.answer(|_| follows(&[&leading, &gone])),
            leader.answer(|_| Answer::refused("the token has expired"))
        );
        let error = asked.0.unwrap_err();
        assert!(chain(error.as_ref()).contains("the token has expired"), "{error:?}");
    }

    #[tokio::test]
    async fn an_edge_joins_by_itself_as_soon_as_there_is_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let (door, cloud) = Door::open(&ca).await;
        let token_file = dir.path().join("token");
        // Nobody listens there any more.
        let gone = Door::open(&ca).await.1;
        let automatic = Automatic { clouds: vec![gone, cloud], token_file: token_file.clone() };
        let directory = Directory::new(&dir.path().join("identity"));
        let connect = ws::tcp();
        let appearing = async {
            // The first attempt finds no token.
            tokio::task::yield_now().await;
            publish(&token_file, b"sa-token\n", 0o600, Existing::Replace).unwrap();
            door.answer(|question| {
                assert_eq!(question.token.reveal(), "sa-token");
                Answer::Certificate(ca.issue(&question.csr, "edge-csi://node/n1", 3))
            })
            .await;
        };
        let source = IdentitySource::new(directory.files(), Some(automatic), connect);
        let (obtained, ()) = tokio::join!(source.obtain(), appearing);
        assert_eq!(obtained.credentials.node().unwrap().as_str(), "n1");
    }

    #[test]
    fn a_token_file_is_read_with_care() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let error = token(&path).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
        let large = usize::try_from(MAX_TOKEN).unwrap() + 1;
        for (content, words) in [(" \n".to_owned(), "is empty"), ("x".repeat(large), "at most")] {
            publish(&path, content.as_bytes(), 0o600, Existing::Replace).unwrap();
            let error = token(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
