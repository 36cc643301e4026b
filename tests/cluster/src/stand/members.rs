//! The etcd of csi-clouds that are pods: three members of Debian's at the stand's address, which
//! the pods' network reaches. They ask for certificates. The pods' `cloud.toml` names them.

use super::access::Access;
use super::ground::{Ground, ports};
use super::layout::stand_address;
use super::several::{REPLICAS, Several};

/// Where clients find each member.
const CLIENTS: [u16; 3] = [12_379, 22_379, 32_379];

/// Starts it, and waits until each member has a quorum. [`Access::etcd`] has made the certificates.
///
/// # Errors
/// A member is not healthy in time.
pub(super) async fn start(
    ground: &Ground,
    access: &Access,
    several: &Several,
) -> anyhow::Result<()> {
    let [a, b, c, d, e, f] = ports()?;
    let peers = [a, b, c];
    let metrics = [d, e, f];
    let url = |port: &u16| format!("http://127.0.0.1:{port}");
    let named = REPLICAS.iter().zip(&peers).map(|(name, peer)| format!("{name}={}", url(peer)));
    let cluster = named.collect::<Vec<_>>().join(",");
    let ways = CLIENTS.iter().zip(&peers).zip(&metrics);
    for ((member, name), ((client, peer), metrics)) in
        several.members.iter().zip(REPLICAS).zip(ways)
    {
        let client = format!("https://{}:{client}", stand_address());
        let peer = url(peer);
        let arguments = vec![
            format!("--name={name}"),
            format!("--data-dir={}", ground.at(&format!("etcd-{name}"))),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", access.at("ca.crt")),
            format!("--cert-file={}", access.at("etcd.crt")),
            format!("--key-file={}", access.at("etcd.key")),
            format!("--listen-metrics-urls={}", url(metrics)),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={cluster}"),
            // The machine does not lose its power.
            "--unsafe-no-fsync".to_owned(),
        ];
        member.reargue(|args| *args = arguments).await?;
    }
    several.quorum().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_configuration_names_all_members() {
        let at = |port: &u16| format!("{}:{port}", stand_address());
        let hosts =
            CLIENTS.iter().map(|port| format!("{:?}", at(port))).collect::<Vec<_>>().join(", ");
        let text = include_str!("manifests/deployed/three.yaml");
        assert!(text.contains(&format!("etcd: {{hosts: [{hosts}]}}\n")), "{hosts}");
    }
}
