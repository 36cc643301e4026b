//! `node remove` while the node's edge or driver attacks, and what is left of the node's answers
//! after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use drivers::testdriver::{Fault, TestDriver, Times};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use harness::raw::RawClient;
use harness::wait::until;
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::fleet::{Fleet, made_at};
use super::report::Row;
use super::world::{DRIVER, HOSTILE, PATIENCE, TRANSPORTS, World};
use super::{endless, frames, replays, scopes, segments};

/// A node that keeps the rules; its volume stays.
const HONEST: &str = "victim";
/// How long the attack goes on before the operator acts.
const BEFORE: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(5);
/// What csi-edge logs of it.
const REMOVED: &str = "an operator removed this node";
const ASKED: &str = "closed <= 5 s, nothing after a purge and a restart";

/// What the node does when it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// Its driver lists without end.
    Lists,
    /// Its driver says that it is at another node's place.
    Place,
    /// Its driver answers each RPC with garbage.
    Garbage,
    /// Its driver answers nothing.
    Silence,
    /// Its edge floods csi-cloud with frames.
    Frames,
    /// Its edge changes its drivers all the time.
    Changes,
    /// Its edge states leases that it does not have.
    Leases,
}

/// Ends when the node's connection is closed.
type Gone = BoxFuture<'static, ()>;

pub(super) async fn run(rows: &mut Vec<Row>) -> anyhow::Result<()> {
    use Attack::{Changes, Frames, Garbage, Leases, Lists, Place, Silence};
    let attacks: [&[Attack]; 3] =
        [&[Lists, Place], &[Garbage, Silence, Leases], &[Frames, Changes]];
    for attacks in attacks {
        let rows_of = attacks
            .iter()
            .flat_map(|attack| TRANSPORTS.map(|transport| removed(transport, *attack)));
        rows.extend(try_join_all(rows_of).await?);
    }
    Ok(())
}

async fn removed(transport: &'static str, attack: Attack) -> anyhow::Result<Row> {
    let mut stand = World::stand().await?;
    stand.log("info");
    let mut fleet = Fleet::on(stand, transport, "scope = \"node\"", &[]).await?;
    fleet.join(HONEST, TestDriver::new(DRIVER, HONEST)).await?;
    fleet.ready().await?;
    let volume = made_at(&fleet, "data", HONEST).await?;
    let tasks = Tasks::default();
    let sent = Arc::default();
    let attacking = attack.begin(&mut fleet, &tasks, &sent).await?;
    let (ended, mut gone) = oneshot::channel();
    tasks.spawn_until_stop("attack", async move {
        attacking.await;
        let _ = ended.send(());
    });
    tasks.spawn_until_stop("ask", ask(fleet.front.clone()));
    sleep(BEFORE).await;
    let sent = until("the attack", || async { attack.sent(&fleet, &sent) }).await?;
    let early = gone.try_recv();
    ensure!(early == Err(TryRecvError::Empty), "{attack:?}: closed before the removal");
    let begun = Instant::now();
    let remove = ["node", "remove", attack.node(), "--yes"];
    let removing = fleet.world.admin(&remove);
    let closing =
        async { matches!(timeout(PATIENCE, gone).await, Ok(Ok(()))).then(|| begun.elapsed()) };
    let (removing, closed) = tokio::join!(removing, closing);
    removing?;
    tasks.stop();
    let left = left_after_restart(fleet, attack, &volume, transport).await?;
    Ok(Row {
        case: format!("remove during {attack:?}"),
        transport,
        asked: ASKED,
        measured: match closed {
            Some(after) => {
                format!("{sent} sent, closed after {:.2} s, {left} left", after.as_secs_f64())
            }
            None => format!("{sent} sent, open after {} s, {left} left", PATIENCE.as_secs()),
        },
        ok: closed.is_some_and(|after| after <= MOST) && left == 0,
    })
}

impl Attack {
    /// The node that attacks.
    fn node(self) -> &'static str {
        match self {
            Self::Lists | Self::Place | Self::Garbage | Self::Silence => segments::CLAIMANT,
            Self::Frames | Self::Changes | Self::Leases => HOSTILE,
        }
    }

    /// Begins to attack. An edge and a driver that lists count in `sent`.
    async fn begin(
        self,
        fleet: &mut Fleet,
        tasks: &Tasks,
        sent: &Arc<AtomicU64>,
    ) -> anyhow::Result<Gone> {
        let world = &fleet.world;
        let later = Instant::now() + Duration::from_secs(600);
        Ok(match self {
            Self::Lists | Self::Place | Self::Garbage | Self::Silence => {
                return self.driver(fleet, sent).await;
            }
            Self::Frames => frames::attack(world, tasks.clone(), sent.clone()).await?.boxed(),
            Self::Changes => {
                let changing = scopes::change(frames::link(world).await?, later, sent.clone());
                changing.map(drop).boxed()
            }
            Self::Leases => replays::attack(world, sent.clone()).await?.boxed(),
        })
    }

    /// A csi-edge whose driver attacks.
    async fn driver(self, fleet: &mut Fleet, sent: &Arc<AtomicU64>) -> anyhow::Result<Gone> {
        let driver = TestDriver::new(DRIVER, self.node());
        driver.record(self != Self::Lists);
        let pages = sent.clone();
        let methods = Method::ALL.iter().filter(|method| method.sent());
        let all = |fault: Fault| {
            methods.for_each(|method| driver.inject(method.name(), fault.clone(), Times::All));
        };
        match self {
            Self::Lists => {
                let page = move |at| {
                    pages.fetch_add(1, Ordering::Relaxed);
                    endless::long(at)
                };
                driver.inject(Method::ListVolumes.name(), Fault::Pages(Arc::new(page)), Times::All);
            }
            Self::Place => {
                let place = Fault::raw(segments::at_the_victims_place());
                driver.inject("NodeGetInfo", place, Times::All);
            }
            Self::Silence => all(Fault::Hang),
            _ => all(Fault::raw(b"\xff\xff\xff".to_vec())),
        }
        fleet.join(self.node(), driver).await?;
        let log = fleet.world.stand.dir().join(format!("csi-edge-{}.log", self.node()));
        Ok(async move {
            while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains(REMOVED)) {
                sleep(Duration::from_millis(10)).await;
            }
        }
        .boxed())
    }

    /// How much of the attack was sent: frames, messages, pages, or calls that its driver has.
    ///
    /// # Errors
    /// Nothing was.
    fn sent(self, fleet: &Fleet, counted: &AtomicU64) -> anyhow::Result<u64> {
        let is_answered = |method: &str| match self {
            Self::Place => method == "NodeGetInfo",
            _ => Method::ALL.iter().any(|known| known.sent() && known.name() == method),
        };
        let node = fleet.nodes.iter().find(|node| node.name == self.node());
        let calls = node.map(|node| node.driver.calls()).unwrap_or_default();
        let calls = calls.iter().filter(|call| is_answered(call.method())).count();
        let sent = counted.load(Ordering::Relaxed) + calls as u64;
        ensure!(sent > 0, "{self:?}: nothing was sent");
        Ok(sent)
    }
}

/// Asks what goes to all nodes, so that the driver is called.
async fn ask(front: RawClient) {
    loop {
        for method in [Method::ListVolumes, Method::GetCapacity] {
            if front.call(method.path(), &[]).await.is_err() {
                return;
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Purges the removed node, starts csi-cloud again, and counts what is left of that node.
async fn left_after_restart(
    fleet: Fleet,
    attack: Attack,
    volume: &str,
    transport: &str,
) -> anyhow::Result<usize> {
    let node = attack.node();
    // It says how many it has; what it lists is its own until an operator forgets it.
    let known = fleet.shown(&["volumes", "--all", "--node", node]).await?;
    let known = known.as_array().map_or(0, Vec::len).to_string();
    fleet.world.admin(&["node", "purge", node, "--forget", &known]).await?;
    let fleet = fleet.restarted(transport).await?;
    let answer = fleet.front.call(Method::ListVolumes.path(), &[]).await?;
    ensure!(answer.code() == Code::Ok, "{}", answer.status());
    let listed = csi::ListVolumesResponse::decode(answer.message().unwrap_or_default())?;
    let ids = listed.entries.into_iter().filter_map(|entry| entry.volume);
    let mut ids: Vec<_> = ids.map(|volume| volume.volume_id).collect();
    let count = ids.len();
    let is_listed = ids.iter().any(|id| id == volume);
    ensure!(is_listed, "{attack:?}: {volume} is not among {count} volumes");
    ids.retain(|id| id != volume);
    let nodes = fleet.shown(&["nodes"]).await?;
    let nodes = nodes.as_array().into_iter().flatten();
    let of_it = nodes.filter(|node| node["name"] == attack.node());
    let linked = of_it.filter(|node| node["state"] != "removed").count();
    fleet.stop().await?;
    Ok(ids.len() + linked)
}
