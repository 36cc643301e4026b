//! Replicas over a real etcd. Each test is skipped if that is not installed.

use std::time::Duration;

use proto::csi::Id;
use proto::host::tasks::Tasks;
use proto::names::DriverName;

use crate::state::record::Change;
use crate::state::store::backend::StoreError;
use crate::state::store::replica::Replica;
use crate::state::store::replicated::Joining;
use crate::state::store::tests::etcd_server::EtcdServer;
use crate::state::store::tests::home;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;
use crate::telemetry::metrics::Metrics;

mod handing_over;
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
        let commits = Metrics::default().commits();
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
