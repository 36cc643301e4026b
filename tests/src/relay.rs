//! A TCP relay on loopback that tests cut: what is connected breaks, and nothing comes through until it is mended.

use std::net::SocketAddr;

use proto::stop::Tasks;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A relay; it ends when it is dropped.
pub struct Relay {
    addr: SocketAddr,
    whole: watch::Sender<bool>,
    tasks: Tasks,
}

impl Relay {
    /// Relays to this address.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn to(target: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (addr, tasks) = (listener.local_addr()?, Tasks::default());
        let whole = watch::Sender::new(true);
        let (state, inner) = (whole.subscribe(), tasks.clone());
        tasks.spawn_until_stop("relay", async move {
            while let Ok((near, _)) = listener.accept().await {
                if *state.borrow() {
                    inner.spawn_until_stop("relayed", relayed(near, target.clone(), state.clone()));
                }
            }
        });
        Ok(Self { addr, whole, tasks })
    }

    /// Where to dial instead.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Breaks all connections; new ones are closed at once.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Lets new connections through again.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

async fn relayed(mut near: TcpStream, target: String, mut whole: watch::Receiver<bool>) {
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = whole.wait_for(|whole| !whole) => {}
    }
}
