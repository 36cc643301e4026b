//! Replicas over a real etcd. Each test is skipped if that is not installed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use hyper_util::rt::TokioIo;
use proto::csi::Id;
use proto::host::tasks::Tasks;
use proto::names::DriverName;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Server};

use crate::etcd::client::Client;
use crate::state::record::Change;
use crate::state::store::backend::StoreError;
use crate::state::store::leadership::Leadership;
use crate::state::store::replica::Replica;
use crate::state::store::replicated::Joining;
use crate::state::store::replicated::cluster::Cluster;
use crate::state::store::replicated::keys::Keys;
use crate::state::store::replicated::member::Member;
use crate::state::store::tests::etcd_server::EtcdServer;
use crate::state::store::tests::home;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;
use crate::telemetry::metrics::Metrics;

mod handing_over;
mod lagging;
mod lost_answers;
mod moving;
mod secured;
mod trouble;

/// How long a state may take.
const SOON: Duration = Duration::from_secs(30);

/// A csi-cloud, as far as the store is concerned.
struct Running {
    store: Store,
    tasks: Tasks,
}

impl Running {
    async fn join(server: &EtcdServer, name: &str) -> Self {
        let tasks = Tasks::default();
        let replica = Replica {
            name: name.into(),
            endpoints: vec![format!("wss://{name}:1").parse().unwrap()],
        };
        let commits = Box::new(Metrics::default().commits());
        let joining = Joining::new(&server.at("edge-csi"), replica, commits).unwrap();
        let store = Store::join(joining.cluster(), &tasks).await.unwrap();
        Self { store, tasks }
    }

    async fn leading(server: &EtcdServer, name: &str) -> Self {
        let running = Self::join(server, name).await;
        soon("it leads", running.store.leadership().leading()).await;
        running
    }

    async fn keep(&self, volume: impl ToString) -> Result<(), StoreError> {
        let id = Id::Volume(volume.to_string());
        self.store.write(move |txn: &mut Txn<'_>| txn.set_home(&d(), &id, Some(home("n1")))).await
    }

    fn has(&self, volume: &str) -> bool {
        let id = Id::Volume(volume.into());
        self.store.read(|state| state.driver(&d()).is_some_and(|of| of.home(&id).is_some()))
    }

    async fn stop(self) {
        self.tasks.finish(SOON).await;
    }
}

fn d() -> DriverName {
    "d.example".parse().unwrap()
}

/// A change of a volume's home.
fn volume(id: &str) -> Change {
    Change::Home(d(), Id::Volume(id.into()), Some(home("n1")))
}

/// A replica without a name, over this client.
fn in_etcd(client: Client) -> Arc<Cluster> {
    let reach = (client, Keys::new("/edge-csi"), "etcd://memory/edge-csi".into());
    Arc::new(Cluster::new(reach, Member::default(), Leadership::following(), None))
}

/// A channel to this service, in memory.
fn in_memory<S>(service: S, tasks: &Tasks) -> Channel
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let (dialed, accepting) = mpsc::channel(8);
    let accepted = stream::unfold(accepting, async |mut accepting: mpsc::Receiver<_>| {
        let accepted = accepting.recv().await?;
        Some((Ok::<_, std::io::Error>(accepted), accepting))
    });
    tasks.spawn_until_stop("etcd of a kind", async move {
        let forever = std::future::pending();
        let accepted = Box::pin(accepted);
        Server::builder().serve_with_incoming_shutdown(service, accepted, forever).await.unwrap();
    });
    let connector = tower::service_fn(move |_| {
        let dialed = dialed.clone();
        async move {
            let (here, there) = tokio::io::duplex(1 << 16);
            dialed.send(there).await.map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(TokioIo::new(here))
        }
    });
    Endpoint::from_static("http://memory").connect_with_connector_lazy(connector)
}

async fn soon<T>(what: &str, done: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, done).await.unwrap_or_else(|_| panic!("not soon: {what}"))
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let looking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, looking).await;
}
