//! Keeps the mirror true: one watch for each kind of object. Other watches run the same way.

use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Api;
use kube::api::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, Event};
use proto::host::tasks::{TaskKind, Tasks};

use crate::kubernetes::api::Server;
use crate::kubernetes::claims;
use crate::kubernetes::mirror;
use crate::kubernetes::mirror::{Mirror, Objects};

/// Objects that a list asks for at a time.
const PAGE: u32 = 500;

type ClaimMetadata = PartialObjectMeta<PersistentVolumeClaim>;

/// Starts all watches.
pub(super) fn watch_all(server: &Arc<Server>, mirror: &Arc<Mirror>, tasks: &Tasks) {
    let client = || server.client.clone();
    let csidrivers = watcher(Api::<CSIDriver>::all(client()), pages());
    let take = into(mirror, |objects, event| objects.drivers.take(event, mirror::driver));
    tasks.spawn_until_stop(
        TaskKind::All("watch"),
        follow("CSIDriver watch", server.clone(), csidrivers, take),
    );
    let csinodes = watcher(Api::<CSINode>::all(client()), pages());
    let take = into(mirror, |objects, event| objects.csinodes.take(event, mirror::csinode));
    tasks.spawn_until_stop(
        TaskKind::All("watch"),
        follow("CSINode watch", server.clone(), csinodes, take),
    );
    let nodes = watcher(Api::<PartialObjectMeta<Node>>::all(client()), pages());
    let take = into(mirror, |objects, event| objects.nodes.take(event, mirror::node));
    tasks.spawn_until_stop(
        TaskKind::All("watch"),
        follow("Node watch", server.clone(), nodes, take),
    );
    let claims = watcher(Api::<ClaimMetadata>::all(client()), pages());
    let take = into(mirror, |objects, event| objects.claims.take(event, claims::claim));
    let what = "PersistentVolumeClaim watch";
    tasks.spawn_until_stop(TaskKind::All("watch"), follow(what, server.clone(), claims, take));
}

/// Takes events into the mirror.
fn into<K, F: Fn(&mut Objects, Event<K>) -> bool>(
    mirror: &Arc<Mirror>,
    take: F,
) -> impl Fn(Event<K>) + use<K, F> {
    let mirror = mirror.clone();
    move |event| mirror.change(|objects| take(objects, event))
}

fn pages() -> Config {
    Config::default().page_size(PAGE)
}

/// Follows a watch for ever; failures are retried with growing waits.
pub(super) async fn follow<K: Send + 'static>(
    what: &'static str,
    server: Arc<Server>,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    take: impl Fn(Event<K>) + Send + Sync,
) {
    let answers = events.filter(|event| {
        let begins = matches!(event, Ok(Event::Init));
        if begins {
            take(Event::Init);
        }
        // `Init` comes before any request. It is no answer and must not reset the backoff.
        std::future::ready(!begins)
    });
    let mut answers = std::pin::pin!(answers.default_backoff());
    while let Some(event) = answers.next().await {
        match event {
            Ok(event) => {
                server.watched(what);
                take(event);
            }
            Err(error) => server.watch_failed(what, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::stream;
    use kube::core::Status;

    use super::*;

    fn failed(code: u16) -> watcher::Error {
        let status = Status { code, ..Status::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    /// How often a list that always fails is begun within ten minutes, as kube's watcher begins it.
    async fn lists(server: &Arc<Server>, code: u16) -> usize {
        let mut begun = 0;
        let mut begins = true;
        let events = stream::poll_fn(|_| {
            begins = !begins;
            begun += usize::from(!begins);
            let event = if begins { Err(failed(code)) } else { Ok(Event::<()>::Init) };
            std::task::Poll::Ready(Some(event))
        });
        let take = |event| assert!(matches!(event, Event::Init));
        let following = follow("x watch", server.clone(), events, take);
        assert!(tokio::time::timeout(Duration::from_secs(600), following).await.is_err());
        begun
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_is_tried_later_and_later_and_is_no_answer() {
        let server = Arc::new(Server::nowhere());
        let times = lists(&server, 503).await;
        assert!(times < 40, "{times} lists in ten minutes");
        assert!(server.is_away(), "the beginning of a list counts as an answer");
        let server = Arc::new(Server::nowhere());
        let times = lists(&server, 403).await;
        assert!(times < 40, "{times} lists in ten minutes");
        assert_eq!(server.logged(), ["x watch"]);
        server.watched("x watch");
        assert!(server.logged().is_empty(), "it would not be told again");
    }
}
