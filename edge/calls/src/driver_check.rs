//! Looks at a driver's socket once: whether somebody serves it, who that is, and whether it is
//! ready. It may use `connection`.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use proto::host::chain;
use proto::http2::forward;
use proto::http2::forward::Upstream;
use proto::names::DriverName;
use tokio::time::timeout;

use crate::connection::{BoxError, check_name, dial_unix, probe, why_away};

/// Asks the driver at this socket for its name, and whether it is ready.
///
/// # Errors
/// Nobody answers in time, or it is another driver; the text says which.
pub async fn look(socket: &Path, driver: &DriverName, patience: Duration) -> Result<bool, String> {
    let looked = timeout(patience, look_patiently(socket, driver)).await;
    let late = |_| format!("it does not answer within {patience:?}");
    looked.map_err(late)?.map_err(|error| chain(error.as_ref()))
}

async fn look_patiently(socket: &Path, driver: &DriverName) -> Result<bool, BoxError> {
    let socket = socket.to_string_lossy();
    let stream = dial_unix(&socket).await.map_err(|error| why_away(&socket, error))?;
    let (sender, connection) = forward::connect(stream).await?;
    tokio::select! {
        biased;
        answered = introduced(&sender, driver) => answered,
        _ = pin!(connection) => Err("it closed the connection".into()),
    }
}

async fn introduced(sender: &Upstream, driver: &DriverName) -> Result<bool, BoxError> {
    check_name(sender, driver).await?;
    Ok(probe(sender).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn an_abstract_socket_is_dialed_by_its_name() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let driver: DriverName = "d.example".parse().unwrap();
        let name = format!("edge-csi-test-{}", std::process::id());
        let socket = format!("unix-abstract:{name}");
        let look = async || look(socket.as_ref(), &driver, Duration::from_secs(5)).await;
        let error = look().await.unwrap_err();
        assert!(error.contains("nobody serves its abstract socket"), "{error}");
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _silent = UnixListener::bind_addr(&address).unwrap();
        let error = look().await.unwrap_err();
        assert!(error.contains("does not answer within 5s"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_without_a_driver_is_explained_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::File::create(at("file")).unwrap();
        drop(UnixListener::bind(at("dead")).unwrap());
        let _silent = UnixListener::bind(at("silent")).unwrap();
        for (name, why) in [
            ("none", "there is nothing at its socket's path"),
            ("file", "is no socket"),
            ("dead", "nobody serves its socket"),
            ("silent", "does not answer within 5s"),
        ] {
            let begun = Instant::now();
            let error = look(&at(name), &driver, Duration::from_secs(5)).await.unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
            assert!(begun.elapsed() <= Duration::from_secs(5));
        }
    }
}
