//! The sockets of this node's drivers, and where others announce themselves.

use std::path::Path;

use edge_calls::driver_check;
use futures_util::future::join_all;
use proto::admin::doctor::Finding;
use proto::names::DriverName;

use super::bound::PATIENCE;
use crate::config::Config;

const CHECK: &str = "driver";

/// Asks all configured drivers at the same time.
pub(super) async fn look(config: &Config) -> Vec<Finding> {
    let sockets = config.drivers.iter().flat_map(|(driver, sockets)| {
        let both = [Some(&sockets.socket), sockets.controller.as_ref()];
        both.into_iter().flatten().map(move |socket| (driver, socket))
    });
    let asked = sockets.map(|(driver, socket)| async move {
        judged(driver, socket, driver_check::look(socket, driver, PATIENCE).await)
    });
    let mut findings = join_all(asked).await;
    if let Some(discovery) = &config.discovery {
        let directories = [&discovery.directory, &discovery.kubelet];
        findings.extend(directories.into_iter().flatten().map(|directory| announced(directory)));
    }
    findings
}

fn judged(driver: &DriverName, socket: &Path, looked: Result<bool, String>) -> Finding {
    let about = format!("{driver} at {}", socket.display());
    match looked {
        Ok(true) => Finding::ok(CHECK, about, "it answers by its name, and is ready"),
        Ok(false) => Finding::warning(
            CHECK,
            about,
            "it answers by its name, and says that it is not ready",
            "look at the driver's log; csi-edge sends it no creates meanwhile",
        ),
        Err(why) => Finding::fault(
            CHECK,
            about,
            why,
            "start the driver, and let it make its socket where the configuration says; in a pod, \
             both containers need that volume",
        ),
    }
}

fn announced(directory: &Path) -> Finding {
    const CHECK: &str = "discovery";
    let about = directory.display().to_string();
    match std::fs::read_dir(directory) {
        Ok(_) => Finding::ok(CHECK, about, "drivers can announce themselves there"),
        Err(error) => Finding::warning(
            CHECK,
            about,
            format!("it cannot be read: {error}"),
            "csi-edge makes its own directory at its start; the kubelet's must be there",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    #[test]
    fn a_driver_that_does_not_answer_is_a_fault() {
        let driver = "d.example".parse().unwrap();
        let of = |looked| judged(&driver, Path::new("/d.sock"), looked).verdict;
        assert_eq!(of(Ok(true)), Verdict::Ok);
        assert_eq!(of(Ok(false)), Verdict::Warning);
        assert_eq!(of(Err("it calls itself \"x\"".into())), Verdict::Fault);
    }

    #[test]
    fn a_directory_of_announcements_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(announced(dir.path()).verdict, Verdict::Ok);
        assert_eq!(announced(&dir.path().join("none")).verdict, Verdict::Warning);
    }
}
