//! Cluster DNS in as far as `deploy/` needs it: the addresses of Services, asked of the API server
//! for each question. A cluster has CoreDNS for it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use proto::host::tasks::Tasks;
use tokio::net::UdpSocket;
use tracing::warn;

/// What the names of Services end with.
const ZONE: &str = ".svc.cluster.local";
/// The length of a message's header.
const HEADER: usize = 12;
/// The type of a question about an IPv4 address.
const A: [u8; 2] = [0, 1];
/// How long an answer counts, in seconds.
const LIFE: [u8; 4] = [0, 0, 0, 5];
/// Codes of answers.
const NO_ERROR: u8 = 0;
const NO_SUCH_NAME: u8 = 3;

/// Serves names until the tasks end.
///
/// # Errors
/// The address cannot be had.
pub(super) async fn serve(at: Ipv4Addr, client: &Client, tasks: &Tasks) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(SocketAddr::from((at, 53))).await.context("no port 53")?;
    let client = client.clone();
    tasks.spawn_until_stop("cluster DNS", async move {
        let mut buffer = [0; 512];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
            let Some(question) = Question::of(buffer.get(..length).unwrap_or_default()) else {
                continue;
            };
            let address = address(&client, &question.name).await;
            let sent = socket.send_to(&question.answer(address), from).await;
            drop(sent.inspect_err(|error| warn!("cluster DNS: {error:#}")));
        }
    });
    Ok(())
}

/// The address of a Service of this name.
async fn address(client: &Client, name: &str) -> Option<Ipv4Addr> {
    let (service, namespace) = name.strip_suffix(ZONE)?.split_once('.')?;
    let services = Api::<Service>::namespaced(client.clone(), namespace);
    services.get_opt(service).await.ok()??.spec?.cluster_ip?.parse().ok()
}

/// A question of a message that has one.
struct Question {
    id: [u8; 2],
    name: String,
    kind: [u8; 2],
    /// As it was asked.
    bytes: Vec<u8>,
}

impl Question {
    fn of(message: &[u8]) -> Option<Self> {
        let id = [*message.first()?, *message.get(1)?];
        let mut at = HEADER;
        let mut labels = Vec::new();
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            let label = message.get(at..at + length)?;
            labels.push(String::from_utf8_lossy(label).to_lowercase());
            at += length;
        }
        let kind = [*message.get(at)?, *message.get(at + 1)?];
        let bytes = message.get(HEADER..at + 4)?.to_vec();
        Some(Self { id, name: labels.join("."), kind, bytes })
    }

    /// The message that answers it. A name with an address of the other family has no answer, but
    /// is there.
    fn answer(&self, address: Option<Ipv4Addr>) -> Vec<u8> {
        let code = if address.is_some() { NO_ERROR } else { NO_SUCH_NAME };
        let address = address.filter(|_| self.kind == A);
        let mut message = self.id.to_vec();
        // A response, authoritative; recursion was desired and is available.
        message.extend([0x85, 0x80 | code, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
        message.extend(&self.bytes);
        if let Some(address) = address {
            // The name is that of the question.
            let at = u8::try_from(HEADER).unwrap_or_default();
            message.extend([0xc0, at, 0, 1, 0, 1]);
            message.extend(LIFE);
            message.extend([0, 4]);
            message.extend(address.octets());
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(kind: u8) -> Vec<u8> {
        let mut message = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        message.extend(b"\x06Relays\x02ns\x00");
        message.extend([0, kind, 0, 1]);
        message
    }

    #[test]
    fn a_name_is_answered_with_its_address() {
        let question = Question::of(&asked(1)).unwrap();
        assert_eq!(question.name, "relays.ns");
        let answer = question.answer(Some(Ipv4Addr::new(10, 0, 0, 7)));
        assert_eq!(answer[..8], [7, 9, 0x85, 0x80, 0, 1, 0, 1]);
        assert_eq!(answer[answer.len() - 6..], [0, 4, 10, 0, 0, 7]);
    }

    #[test]
    fn another_family_has_no_answer_and_an_unknown_name_is_not_there() {
        let other = Question::of(&asked(28)).unwrap();
        assert_eq!(other.answer(Some(Ipv4Addr::LOCALHOST))[2..8], [0x85, 0x80, 0, 1, 0, 0]);
        assert_eq!(other.answer(None)[2..8], [0x85, 0x83, 0, 1, 0, 0]);
        assert!(Question::of(&asked(1)[..20]).is_none() && Question::of(&[]).is_none());
    }
}
