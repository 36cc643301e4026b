//! `node remove` at each step of a link's life, whatever its edge does.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use harness::raw::RawClient;
use harness::requests::controller;
use proto::control::hello::Message;
use proto::link::{Event, Link, ws};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout};

use super::report::Row;
use super::unread::{Since, Unread};
use super::world::{DRIVER, HOSTILE, PATIENCE, TRANSPORTS, World, closed, driver, hello, welcomed};

const ASKED: &str = "closed <= 5 s after `node remove`";
const MOST: Duration = Duration::from_secs(5);
/// How long the connection is open before.
const BEFORE: Duration = Duration::from_millis(200);

/// The step of a link's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    BeforeHello,
    AtWelcome,
    Idle,
    Unread,
    WithCall,
    Closing,
}

/// Ends when csi-cloud has closed the connection.
type Closed<'a> = BoxFuture<'a, ()>;

pub(super) async fn run(rows: &mut Vec<Row>) -> anyhow::Result<()> {
    use Step::{AtWelcome, BeforeHello, Closing, Idle, Unread, WithCall};
    for step in [BeforeHello, AtWelcome, Idle, Unread, WithCall, Closing] {
        let measured = try_join_all(TRANSPORTS.map(|transport| removed(transport, step))).await;
        rows.extend(measured.with_context(|| format!("{step:?}"))?);
    }
    Ok(())
}

async fn removed(transport: &'static str, step: Step) -> anyhow::Result<Row> {
    let world = World::new(transport).await?;
    // Only a node that has linked can be removed.
    world.link(HOSTILE).await?.close("known").await;
    let mut held = hold(&world, step).await?;
    ensure!(timeout(BEFORE, &mut held).await.is_err(), "{step:?}: closed before the removal");
    let admin = world.stand.at("cloud/_admin.sock");
    let begun = Instant::now();
    let removing = async {
        let remove = ["node", "remove", HOSTILE, "--yes", "--admin", &admin];
        world.stand.run("csi-cloud", &remove).await
    };
    let closing = async {
        let is_closed = timeout(PATIENCE, held).await.is_ok();
        (is_closed, begun.elapsed())
    };
    let (removed, (is_closed, elapsed)) = tokio::join!(removing, closing);
    removed?;
    world.stop().await?;
    let end = if is_closed { "closed after" } else { "open after" };
    Ok(Row {
        case: format!("remove, {step:?}"),
        transport,
        asked: ASKED,
        measured: format!("{end} {:.2} s", elapsed.as_secs_f64()),
        ok: is_closed && elapsed <= MOST,
    })
}

/// A connection at this step.
async fn hold(world: &World, step: Step) -> anyhow::Result<Closed<'_>> {
    let unread = async |since| anyhow::Ok(Unread::link(world, HOSTILE, since).await?.closed());
    Ok(match step {
        Step::BeforeHello => reading(world.dial(HOSTILE, &ws::tcp()).await?),
        Step::AtWelcome => unread(Since::Hello).await?.boxed(),
        Step::Idle => reading(world.link(HOSTILE).await?),
        Step::Unread => unread(Since::Welcome).await?.boxed(),
        Step::WithCall => with_call(world).await?,
        Step::Closing => {
            let older = unread(Since::Welcome).await?;
            let newer = reading(world.link(HOSTILE).await?);
            async move {
                older.await;
                newer.await;
            }
            .boxed()
        }
    })
}

fn reading(mut link: Link) -> Closed<'static> {
    async move { closed(&mut link).await }.boxed()
}

/// A link with a call that the edge never answers.
async fn with_call(world: &World) -> anyhow::Result<Closed<'_>> {
    let mut link = world.dial(HOSTILE, &ws::tcp()).await?;
    link.send(&Message::Hello(hello(HOSTILE, vec![driver(DRIVER, true)?])?)).await?;
    welcomed(&mut link).await?;
    let front = RawClient::connect(&world.stand.cloud_front(DRIVER)).await?;
    let mut calling = async move {
        let _ = front.call(&controller("GetCapacity"), &[]).await;
        std::future::pending::<()>().await;
    }
    .boxed();
    let opened = async {
        loop {
            match link.next().await {
                Event::Opened(_, io) => return Ok(io),
                Event::Closed(error) => return Err(error),
                Event::Message(_) => {}
            }
        }
    };
    let mut io = tokio::select! {
        opened = timeout(PATIENCE, opened) => opened.context("no call came")??,
        () = &mut calling => anyhow::bail!("the call ended"),
    };
    Ok(async move {
        // It takes the call and never answers.
        let mut unanswered = [0; 1024];
        // Over QUIC the stream may end before the connection. Over WebSocket it is the connection,
        // whose end is known when it is dropped.
        let reading = async {
            while let Ok(1..) = io.read(&mut unanswered).await {}
            drop(io);
        };
        let closing = async { tokio::join!(closed(&mut link), reading) };
        tokio::select! { _ = closing => {}, () = calling => {} }
    }
    .boxed())
}
