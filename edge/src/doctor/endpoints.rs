//! The endpoints of the cloud: names, the proxy, the network, TLS, and the round trip.
//!
//! It is looked at by the link's own code, and asks for no link, so a link in use stays.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use proto::admin::doctor::certificate::certificate;
use proto::admin::doctor::{Finding, Verdict};
use proto::host::chain;
use proto::link::addresses::Addresses;
use proto::link::check::{check, check_reach};
use proto::link::endpoint::Endpoint;
use proto::link::proxy::{Proxy, ProxySetting};
use proto::link::steps::Steps;
use proto::link::tls::Credentials;
use proto::link::{LinkError, NodeNetwork};
use proto::names::certificate::{Validity, hosts_of};
use tokio::time::timeout;

use super::bound::PATIENCE;

/// What was seen of one endpoint.
pub(super) struct EndpointCheck {
    pub(super) endpoint: Endpoint,
    /// The proxy in the way.
    proxy: Option<Proxy>,
    /// There is a proxy, and this transport does not go through it.
    passes_proxy: bool,
    /// The addresses of its name.
    addresses: Result<Vec<SocketAddr>, String>,
    /// How far a dial of each came, if there are several, and no proxy is in the way.
    each: Vec<(SocketAddr, Steps)>,
    /// How far a dial came.
    pub(super) steps: Steps,
    /// Whether there were credentials to go further than a connection.
    authenticates: bool,
}

/// Looks at an endpoint.
pub(super) async fn look(
    endpoint: &Endpoint,
    proxy: &ProxySetting,
    credentials: Option<&Credentials>,
) -> EndpointCheck {
    let network = proxy.network();
    let dialing = dialed(endpoint, &network, credentials);
    let (addresses, steps) = tokio::join!(addresses(endpoint, &network), dialing);
    let proxy = proxy.of(endpoint);
    let passes_proxy = matches!(proxy, Some((_, false)));
    let each = match (&addresses, &proxy) {
        (Ok(addresses), None | Some((_, false))) if addresses.len() > 1 => {
            each(endpoint, addresses, credentials).await
        }
        _ => Vec::new(),
    };
    EndpointCheck {
        endpoint: endpoint.clone(),
        proxy: proxy.filter(|(_, is_used)| *is_used).map(|(proxy, _)| proxy),
        passes_proxy,
        addresses,
        each,
        steps,
        authenticates: credentials.is_some(),
    }
}

async fn dialed(
    endpoint: &Endpoint,
    network: &NodeNetwork,
    credentials: Option<&Credentials>,
) -> Steps {
    match credentials {
        Some(credentials) => check(endpoint, credentials, network, PATIENCE).await,
        None => check_reach(endpoint, network, PATIENCE).await,
    }
}

/// Looks at each address alone, all at the same time.
async fn each(
    endpoint: &Endpoint,
    addresses: &[SocketAddr],
    credentials: Option<&Credentials>,
) -> Vec<(SocketAddr, Steps)> {
    let looks = addresses.iter().map(async |addr| {
        let network = NodeNetwork::direct(Addresses::only(*addr));
        (*addr, dialed(endpoint, &network, credentials).await)
    });
    join_all(looks).await
}

async fn addresses(endpoint: &Endpoint, network: &NodeNetwork) -> Result<Vec<SocketAddr>, String> {
    let at = endpoint.address();
    let resolved = timeout(PATIENCE, network.resolve(&at)).await;
    let resolved = resolved.map_err(|_| format!("no answer within {PATIENCE:?}"))?;
    resolved.map_err(|error| error.to_string())
}

/// What is said of all endpoints. One that works is enough, so a fault of another is a warning
/// then.
pub(super) fn findings(checks: &[EndpointCheck], now: SystemTime) -> Vec<Finding> {
    let works = checks.iter().any(|check| check.steps.round_trip.is_some());
    let mut findings: Vec<_> = checks.iter().flat_map(|check| check.findings(now)).collect();
    for finding in findings.iter_mut().filter(|finding| finding.verdict == Verdict::Fault) {
        if works {
            finding.verdict = Verdict::Warning;
        }
    }
    findings
}

impl EndpointCheck {
    fn findings(&self, now: SystemTime) -> Vec<Finding> {
        let mut findings: Vec<_> = self.name().into_iter().collect();
        findings.extend(self.through_proxy());
        if self.proxy.is_none() && self.addresses.is_ok() {
            findings.push(self.network());
            findings
                .extend(self.each.iter().filter_map(|(addr, steps)| self.address(*addr, steps)));
        }
        if self.was_answered() {
            findings.extend(self.certificate(now));
            findings.push(self.tls());
        }
        if self.steps.encrypted.is_some() {
            findings.push(self.link());
        }
        findings.extend(self.packets());
        findings
    }

    fn about(&self) -> String {
        self.endpoint.to_string()
    }

    /// Why the next step failed.
    fn why(&self) -> String {
        self.steps.failed.as_ref().map(|error| chain(error)).unwrap_or_default()
    }

    /// DNS; nothing for an address.
    fn name(&self) -> Option<Finding> {
        const CHECK: &str = "dns";
        let host = self.endpoint.host.trim_matches(['[', ']']);
        if host.parse::<IpAddr>().is_ok() {
            return None;
        }
        Some(match &self.addresses {
            Ok(addresses) => {
                let all: Vec<_> = addresses.iter().map(|addr| addr.ip().to_string()).collect();
                Finding::ok(CHECK, host, all.join(", "))
            }
            Err(why) if self.proxy.is_some() => {
                let found = format!("this node does not resolve it ({why}); the proxy has to");
                Finding::ok(CHECK, host, found)
            }
            Err(why) => Finding::fault(
                CHECK,
                host,
                format!("it cannot be resolved: {why}"),
                "look at /etc/resolv.conf and ask the name server (`getent hosts NAME`); a pod \
                 with hostNetwork uses the node's (dnsPolicy: Default)",
            ),
        })
    }

    /// The proxy in the way.
    fn through_proxy(&self) -> Option<Finding> {
        const CHECK: &str = "proxy";
        if self.passes_proxy {
            let found = "QUIC is dialed directly; an HTTP proxy does not carry it";
            return Some(Finding::ok(CHECK, self.about(), found));
        }
        let proxy = self.proxy.as_ref()?;
        let about = format!("{} by {proxy}", self.endpoint);
        Some(match self.steps.connected {
            Some(took) => {
                Finding::ok(CHECK, about, format!("it made a tunnel in {}", millis(took)))
            }
            None => Finding::fault(
                CHECK,
                about,
                self.why(),
                "let the proxy allow CONNECT to that host and port, and correct proxy (--proxy) or \
                 HTTPS_PROXY; for the direct way name the host in NO_PROXY, or set \
                 proxy = \"none\"",
            ),
        })
    }

    /// TCP or UDP.
    fn network(&self) -> Finding {
        let Endpoint { port, .. } = &self.endpoint;
        match (self.endpoint.transport.is_tcp(), self.steps.connected) {
            (true, Some(took)) => {
                Finding::ok("tcp", self.about(), format!("connected in {}", millis(took)))
            }
            (true, None) => Finding::fault(
                "tcp",
                self.about(),
                self.why(),
                format!(
                    "let this node dial TCP port {port} there: look at firewalls and routes on the \
                     way, and whether csi-cloud runs and listens there (its `listen`, the Service, \
                     the load balancer)"
                ),
            ),
            (false, _) if self.was_answered() => Finding::ok("udp", self.about(), "it answered"),
            (false, _) if !self.authenticates => {
                let advice = "mend the identity first";
                Finding::unknown("udp", self.about(), "not tried without a certificate", advice)
            }
            (false, _) => Finding::fault(
                "udp",
                self.about(),
                self.why(),
                format!(
                    "let this node dial UDP port {port} there, and its answers back; where a \
                     network swallows UDP, name a wss:// endpoint in cloud as well"
                ),
            ),
        }
    }

    /// One address of several; `None` if it was not tried.
    fn address(&self, addr: SocketAddr, steps: &Steps) -> Option<Finding> {
        const CHECK: &str = "address";
        let about = format!("{} at {addr}", self.endpoint);
        if let Some(error) = &steps.failed {
            return Some(Finding::fault(
                CHECK,
                about,
                chain(error),
                "csi-edge links by another address if one works; correct the route to this one, or \
                 take it out of DNS",
            ));
        }
        let took = [steps.connected, steps.encrypted].into_iter().flatten().sum::<Duration>();
        (took > Duration::ZERO)
            .then(|| Finding::ok(CHECK, about, format!("it answered in {}", millis(took))))
    }

    /// Whether the other side answered what comes after the network.
    fn was_answered(&self) -> bool {
        if !self.authenticates {
            return false;
        }
        let is_silent = matches!(
            self.steps.failed,
            Some(LinkError::Unanswered(_) | LinkError::TimedOut | LinkError::Unreachable(..))
        );
        if self.endpoint.transport.is_tcp() {
            self.steps.connected.is_some()
        } else {
            self.steps.encrypted.is_some() || !is_silent
        }
    }

    /// The names in the cloud's certificate, and its validity; nothing if it showed none.
    fn certificate(&self, now: SystemTime) -> Vec<Finding> {
        let Some(shown) = &self.steps.shown else { return Vec::new() };
        let host = self.endpoint.host.trim_matches(['[', ']']);
        let hosts = hosts_of(shown).unwrap_or_default();
        let all = hosts.join(", ");
        let names = if self.steps.encrypted.is_some() || hosts.iter().any(|name| name == host) {
            Finding::ok("names", self.about(), format!("csi-cloud's certificate is for {all}"))
        } else {
            Finding::fault(
                "names",
                self.about(),
                format!("the certificate there is for {all}, and {host} is dialed"),
                "dial a name that it has, or make csi-cloud a certificate for this one \
                 (--host of `csi-cloud ca init` and `csi-cloud ca use`); if that is not \
                 csi-cloud's, something else answers at this address",
            )
        };
        let advice = "csi-cloud renews it if it has the CA ([ca]); otherwise make it a new one";
        let validity = Validity::of(shown).ok();
        let validity = validity
            .map(|validity| certificate("cloud-certificate", self.about(), &validity, now, advice));
        std::iter::once(names).chain(validity).collect()
    }

    fn tls(&self) -> Finding {
        const CHECK: &str = "tls";
        match self.steps.encrypted {
            Some(took) => Finding::ok(CHECK, self.about(), format!("TLS 1.3 in {}", millis(took))),
            None => Finding::fault(
                CHECK,
                self.about(),
                self.why(),
                "both ends need certificates of one CA: compare the CA's hash here and at \
                 csi-cloud; a firewall that opens TLS cannot be in the way",
            ),
        }
    }

    /// Whether csi-cloud takes our certificate.
    fn link(&self) -> Finding {
        const CHECK: &str = "link";
        match self.steps.round_trip {
            Some(took) => Finding::ok(
                CHECK,
                self.about(),
                format!("csi-cloud takes this node's certificate; round trip {}", millis(took)),
            ),
            None => Finding::fault(
                CHECK,
                self.about(),
                self.why(),
                "`csi-cloud nodes` there says whether this node was removed or revoked, and the \
                 log of csi-cloud why it refuses",
            ),
        }
    }

    /// Whether large messages pass; nothing if that is not known.
    fn packets(&self) -> Option<Finding> {
        const CHECK: &str = "packets";
        Some(match self.steps.large.as_ref()? {
            Ok(()) => Finding::ok(CHECK, self.about(), "16 KiB pass each way"),
            Err(error) => Finding::fault(
                CHECK,
                self.about(),
                format!("small messages pass, and 16 KiB do not: {}", chain(error)),
                "something on the way drops large packets: lower the MTU of the interface here \
                 (1280 passes nearly everywhere), let ICMP \"fragmentation needed\" through, or \
                 name a quic:// endpoint in cloud: QUIC finds the size that passes",
            ),
        })
    }
}

/// A time as people read it.
fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const MS: Duration = Duration::from_millis(1);

    fn seen(endpoint: &str, steps: Steps) -> EndpointCheck {
        let addresses = Ok(vec![SocketAddr::from(([192, 0, 2, 1], 1))]);
        EndpointCheck {
            endpoint: endpoint.parse().unwrap(),
            proxy: None,
            passes_proxy: false,
            addresses,
            each: Vec::new(),
            steps,
            authenticates: true,
        }
    }

    fn verdicts(checks: &[EndpointCheck]) -> Vec<(String, Verdict)> {
        let findings = findings(checks, SystemTime::now());
        findings.into_iter().map(|finding| (finding.check, finding.verdict)).collect()
    }

    fn is(found: &[(String, Verdict)], expected: &[(&str, Verdict)]) {
        let found: Vec<_> =
            found.iter().map(|(check, verdict)| (check.as_str(), *verdict)).collect();
        assert_eq!(found, expected);
    }

    fn works() -> Steps {
        let took = Some(MS);
        Steps { connected: took, encrypted: took, round_trip: took, ..Steps::default() }
    }

    fn unreachable() -> Option<LinkError> {
        let error = io::ErrorKind::ConnectionRefused.into();
        Some(LinkError::Unreachable("c:1".into(), error))
    }

    #[test]
    fn a_way_is_followed_to_the_step_that_fails() {
        let ok = Verdict::Ok;
        let fault = Verdict::Fault;
        let whole = [("dns", ok), ("tcp", ok), ("tls", ok), ("link", ok)];
        is(&verdicts(&[seen("wss://c:1", works())]), &whole);
        let closed = Steps { failed: unreachable(), ..Steps::default() };
        is(&verdicts(&[seen("wss://c:1", closed)]), &[("dns", ok), ("tcp", fault)]);
        let other = Some(LinkError::Tls("another CA".into()));
        let other = Steps { connected: Some(MS), failed: other, ..Steps::default() };
        is(&verdicts(&[seen("wss://c:1", other)]), &[("dns", ok), ("tcp", ok), ("tls", fault)]);
        let refused = Some(LinkError::Tls("revoked".into()));
        let refused = Steps { round_trip: None, failed: refused, ..works() };
        is(&verdicts(&[seen("wss://c:1", refused)])[2..], &[("tls", ok), ("link", fault)]);
    }

    #[test]
    fn large_messages_have_a_line() {
        let packets = |large| {
            let check = seen("wss://c:1", Steps { large, ..works() });
            verdicts(&[check]).into_iter().find(|(check, _)| check == "packets")
        };
        assert_eq!(packets(None), None);
        assert_eq!(packets(Some(Ok(()))), Some(("packets".into(), Verdict::Ok)));
        // The link works, but not for all.
        let silent = packets(Some(Err(LinkError::Unanswered(PATIENCE))));
        assert_eq!(silent, Some(("packets".into(), Verdict::Warning)));
    }

    #[test]
    fn over_quic_silence_is_the_networks_and_an_alert_is_not() {
        let ok = Verdict::Ok;
        let fault = Verdict::Fault;
        let silent = Some(LinkError::Unanswered(PATIENCE));
        let silent = Steps { failed: silent, ..Steps::default() };
        is(&verdicts(&[seen("quic://192.0.2.1:1", silent)]), &[("udp", fault)]);
        let other = Some(LinkError::Tls("another CA".into()));
        let other = Steps { failed: other, ..Steps::default() };
        is(&verdicts(&[seen("quic://192.0.2.1:1", other)]), &[("udp", ok), ("tls", fault)]);
        let mut none = seen("quic://192.0.2.1:1", Steps::default());
        none.authenticates = false;
        is(&verdicts(&[none]), &[("udp", Verdict::Unknown)]);
    }

    #[test]
    fn one_way_that_works_makes_the_faults_of_others_warnings() {
        let silent = Some(LinkError::Unanswered(PATIENCE));
        let silent = Steps { failed: silent, ..Steps::default() };
        let both = [seen("quic://192.0.2.1:1", silent), seen("wss://192.0.2.1:1", works())];
        let found = verdicts(&both);
        assert_eq!(found[0], ("udp".into(), Verdict::Warning));
        assert!(found[1..].iter().all(|(_, verdict)| *verdict == Verdict::Ok), "{found:?}");
    }

    #[tokio::test]
    async fn each_address_of_a_name_has_a_line() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let closed = SocketAddr::from(([127, 0, 0, 2], good.port()));
        let mut check = seen("wss://cloud.example:1", works());
        check.each = each(&check.endpoint, &[closed, good], None).await;
        let found = findings(&[check], SystemTime::now());
        let lines: Vec<_> = found.iter().filter(|finding| finding.check == "address").collect();
        let verdicts: Vec<_> = lines.iter().map(|line| line.verdict).collect();
        assert_eq!(verdicts, [Verdict::Warning, Verdict::Ok], "{lines:?}");
        assert!(lines[0].about.ends_with(&closed.to_string()), "{lines:?}");
        assert!(lines[0].found.contains("refused"), "{lines:?}");
    }

    #[test]
    fn a_name_may_be_left_to_the_proxy() {
        let mut direct = seen("wss://cloud.example:1", Steps::default());
        direct.addresses = Err("no such name".into());
        is(&verdicts(&[direct]), &[("dns", Verdict::Fault)]);
        let setting: ProxySetting = "http://u:secret@p:1".parse().unwrap();
        let mut proxied = seen("wss://cloud.example:1", works());
        proxied.proxy = setting.of(&proxied.endpoint).map(|(proxy, _)| proxy);
        proxied.addresses = Err("no such name".into());
        let findings = findings(&[proxied], SystemTime::now());
        let checks: Vec<_> = findings.iter().map(|finding| finding.check.as_str()).collect();
        assert_eq!(checks, ["dns", "proxy", "tls", "link"]);
        assert!(findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{findings:?}");
        assert!(!format!("{findings:?}").contains("secret"));
    }
}
