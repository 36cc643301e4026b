//! The wire between the stand's network namespace and that of a node: a pair of veth devices. The
//! stand is the node's router. So a node reaches the API server and its relay, and no other
//! network.

use std::net::Ipv4Addr;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::layout::{pods, stand_address};

/// The device at the node.
const UPLINK: &str = "uplink";

/// A pair of veth devices between the stand and a node.
pub(super) struct Wire {
    /// The node's place in the layout.
    pub(super) place: u8,
    pub(super) address: Ipv4Addr,
    /// The addresses of the load balancer that lead to this node.
    pub(super) balanced: Vec<Ipv4Addr>,
}

impl Wire {
    /// Lays it to the namespace of a process. It goes when that namespace does.
    ///
    /// # Errors
    /// `ip` of iproute2 is not installed, or the kernel has no such devices.
    pub(super) async fn lay(&self, pid: u32) -> anyhow::Result<()> {
        let device = self.device();
        let node = self.address;
        let stand = stand_address();
        let near = [
            format!("link add {device} type veth peer name {UPLINK} netns {pid}"),
            format!("link set {device} up"),
            format!("route replace {node}/32 dev {device} src {stand}"),
            format!("route replace {} via {node} dev {device} onlink src {stand}", self.pods()),
        ];
        let far = [
            "link set lo up".to_owned(),
            format!("address add {node}/32 dev {UPLINK}"),
            format!("link set {UPLINK} up"),
            format!("route add {stand}/32 dev {UPLINK}"),
            format!("route add default via {stand} dev {UPLINK}"),
        ];
        for args in &near {
            run("ip", args.split(' ')).await?;
        }
        for address in &self.balanced {
            let route =
                format!("route replace {address}/32 via {node} dev {device} onlink src {stand}");
            run("ip", route.split(' ')).await?;
        }
        let net = format!("--net=/proc/{pid}/ns/net");
        for args in &far {
            run("nsenter", [&net, "--", "ip"].into_iter().chain(args.split(' '))).await?;
        }
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        run("nsenter", [&net, "--", "sh", "-c", forward].into_iter()).await
    }

    fn device(&self) -> String {
        format!("node{}", self.place)
    }

    fn pods(&self) -> String {
        pods(self.place)
    }
}

async fn run<'a>(program: &str, args: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let args: Vec<_> = args.collect();
    let output = Command::new(program).args(&args).output().await;
    let output = output.with_context(|| format!("{program} cannot be started"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", args.join(" "), error.trim());
    Ok(())
}
