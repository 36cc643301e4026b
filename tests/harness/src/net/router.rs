//! Forwards packets between two devices, each direction by its [`Path`].

use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use tokio::time::Instant;
use tokio_tun::Tun;
use tracing::warn;

use super::path::{Counts, Path};
use super::space::MTU;

type Shared = Arc<Mutex<Path>>;

/// Runs until it is dropped.
pub(super) struct Router {
    paths: [Shared; 2],
    tasks: Tasks,
}

fn lock(path: &Shared) -> MutexGuard<'_, Path> {
    path.lock()
}

impl Router {
    /// Carries from `a` to `b` by the first path and back by the second.
    pub(super) fn start(a: Tun, b: Tun, paths: [Path; 2]) -> Self {
        let a = Arc::new(a);
        let b = Arc::new(b);
        let router =
            Self { paths: paths.map(|path| Arc::new(Mutex::new(path))), tasks: Tasks::default() };
        let [there, back] = &router.paths;
        for (from, to, path) in [(&a, &b, there), (&b, &a, back)] {
            let forwarding = forward(from.clone(), to.clone(), path.clone());
            router.tasks.spawn_until_stop("router", async move {
                if let Err(error) = forwarding.await {
                    warn!(%error, "the router cannot carry on");
                }
            });
        }
        router
    }

    pub(super) fn swallow(&self) {
        self.paths.iter().for_each(|path| lock(path).swallow());
    }

    pub(super) fn counts(&self) -> [Counts; 2] {
        self.paths.each_ref().map(|path| lock(path).counts())
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

async fn forward(from: Arc<Tun>, to: Arc<Tun>, path: Shared) -> io::Result<()> {
    let mut buffer = vec![0; MTU.into()];
    loop {
        let due = lock(&path).next_due();
        let arrival = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = from.recv(&mut buffer) => {
                offer(&path, &buffer, received?);
                // Further packets of the queue have the same time of arrival.
                while let Ok(length) = from.try_recv(&mut buffer) {
                    offer(&path, &buffer, length);
                }
            }
            () = arrival => loop {
                let Some(packet) = lock(&path).arrived(Instant::now()) else { break };
                to.send(&packet).await?;
            },
        }
    }
}

/// IPv4 only: the kernel's own IPv6 chatter would count as packets.
fn offer(path: &Shared, buffer: &[u8], length: usize) {
    let packet = buffer.get(..length).unwrap_or_default();
    if packet.first().is_some_and(|first| first >> 4 == 4) {
        lock(path).offer(Instant::now(), packet);
    }
}
