//! The images of the suite's pods. They are made here under the names that the suite has for them,
//! so that no kubelet pulls one.

use anyhow::{Context, ensure};
use tokio::process::Command;

use crate::stand::Cluster;
use crate::stand::image::{self, Entry, Image};

/// GNU's `dd`, which knows how to leave out the page cache. Debian's `sh` is there to find it, as
/// busybox's one takes busybox's.
const GNU: [&str; 4] =
    ["/bin/dd", "/bin/sh", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];

/// Makes the images and gives them to every node.
///
/// # Errors
/// The suite does not name its images, or a node does not take one.
pub(super) async fn import(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = &cluster.ground;
    let listed = Command::new(ground.tool("e2e.test")).arg("--list-images").output().await;
    let listed = listed.context("the suite cannot be started")?;
    let text = String::from_utf8(listed.stdout).context("the suite lists what is no text")?;
    let agnhost = ground.tool("agnhost");
    let applets = image::applets().await?;
    // Of nginx, pods with volumes use the shell alone.
    let boxes = named(&text, &["busybox", "nginx"]);
    let glibcs = named(&text, &["glibc-dns-testing"]);
    let hosts = named(&text, &["agnhost"]);
    let all_named = [&boxes, &glibcs, &hosts].iter().all(|names| !names.is_empty());
    ensure!(all_named, "the suite has other images: {text}");
    let images = [
        Image { file: "box", names: &boxes, applets: &applets, files: &[], entry: None },
        Image { file: "glibc", names: &glibcs, applets: &applets, files: &GNU, entry: None },
        Image {
            file: "host",
            names: &hosts,
            applets: &applets,
            files: &[],
            entry: Some(Entry {
                program: &agnhost,
                at: "/agnhost".to_owned(),
                args: &["pause"],
                user: "",
            }),
        },
    ];
    for image in &images {
        let archive = image::make(ground.dir(), image).await?;
        let nodes = cluster.nodes.iter().map(|node| node.worker.import(&archive));
        futures_util::future::try_join_all(nodes).await?;
        std::fs::remove_file(&archive)?;
    }
    Ok(())
}

/// The listed images whose last path segment, without its tag, is one of these names.
fn named(listed: &str, names: &[&str]) -> Vec<String> {
    let is_one = |image: &&str| {
        let last = image.rsplit('/').next().unwrap_or_default();
        names.contains(&last.split(':').next().unwrap_or_default())
    };
    listed.lines().map(str::trim).filter(is_one).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_chosen_by_their_own_names() {
        let listed = "a.example/tests/busybox:1\na.example/busybox/other:1\n a.example/nginx:2\n";
        let boxes = named(listed, &["busybox", "nginx"]);
        assert_eq!(boxes, ["a.example/tests/busybox:1", "a.example/nginx:2"]);
    }
}
