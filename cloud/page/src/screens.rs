//! Makes each page: asks csi-cloud for what it shows, and hands that to its view. The frame around
//! it is the same for all.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Extension, Router};
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use maud::{Markup, html};
use proto::admin::view;
use proto::admin::view::{
    CallsPage, ClaimPage, ExplainAnswer, ExplainQuery, Found, NodeOf, NodePage, TextOf, VolumeOf,
    VolumePage,
};
use proto::names::{DriverName, NodeName};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Duration, Instant, timeout};

use crate::access::guard::Pass;
use crate::events::{CALLS, NODES};
use crate::hub::FleetMoment;
use crate::state::PageState;
use crate::views;
use crate::views::frame;
use crate::views::frame::{Frame, Tab};
use crate::views::lists::NodeFilter;
use crate::views::map::By;
use crate::views::{link, lists, subject};

/// The time limit for making a page.
const MAKING_TIME_MAX: Duration = Duration::from_secs(30);

/// Somebody's look at one page: the fleet as it is now, and who looks.
#[derive(Clone)]
struct Visit {
    page: Arc<PageState>,
    moment: Arc<FleetMoment>,
    pass: Pass,
    /// What was searched for.
    query: String,
}

type Look = Extension<Visit>;
type Shown = Result<Response, StatusCode>;

/// The keys of queries.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PageQuery {
    q: String,
    by: By,
    state: String,
}

/// The pages. A request has its [`Pass`] as an extension.
pub(crate) fn routes(page: Arc<PageState>) -> Router<Arc<PageState>> {
    Router::new()
        .route("/", get(overview))
        .route("/wrong", get(wrong))
        .route("/nodes", get(nodes))
        .route("/volumes", get(volumes))
        .route("/calls", get(calls))
        .route("/certificates", get(certificates))
        .route("/find", get(find))
        .route("/node/{name}", get(node))
        .route("/driver/{name}", get(driver))
        .route("/pv/{name}", get(pv))
        .route("/pod/{namespace}/{name}", get(pod))
        .route("/claim/{namespace}/{name}", get(claim))
        .route("/volume/{driver}/{id}", get(volume))
        .fallback(async || StatusCode::NOT_FOUND)
        .layer(axum::middleware::from_fn_with_state(page, make))
}

/// Makes a page, a bounded number at a time, and says how long it took.
async fn make(
    State(page): State<Arc<PageState>>,
    Extension(pass): Extension<Pass>,
    mut request: Request,
    next: Next,
) -> Response {
    let Ok(_turn) = page.making.try_acquire() else { return busy("1") };
    let begun = Instant::now();
    let Some(moment) = page.hub.current().await else { return away() };
    let visit = Visit { page: page.clone(), moment, pass, query: String::new() };
    request.extensions_mut().insert(visit.clone());
    let Ok(mut made) = timeout(MAKING_TIME_MAX, next.run(request)).await else {
        return busy("5");
    };
    if made.status() == StatusCode::SERVICE_UNAVAILABLE {
        return away();
    }
    if made.status().is_client_error() {
        made = visit.show("Not found", Tab::Other, &[], frame::not_found());
        *made.status_mut() = StatusCode::NOT_FOUND;
    }
    let millis = begun.elapsed().as_secs_f64() * 1000.0;
    if let Ok(value) = HeaderValue::from_str(&format!("render;dur={millis:.1}")) {
        made.headers_mut().insert(HeaderName::from_static("server-timing"), value);
    }
    made
}

fn busy(seconds: &'static str) -> Response {
    let text = "csi-page is busy; try again\n";
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, seconds)], text).into_response()
}

fn away() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], frame::away()).into_response()
}

impl Visit {
    /// The page in its frame. `about` are the names whose changes make it old.
    fn show(&self, title: &str, tab: Tab, about: &[&str], main: Markup) -> Response {
        let frame = Frame {
            title,
            tab,
            about,
            revision: format!("{}-{}", self.page.hub.epoch, self.moment.feed.last()),
            now: self.moment.snapshot.at,
            query: &self.query,
            has_session: matches!(self.pass, Pass::Session(_)),
        };
        frame::page(&frame, &main).into_response()
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        path: &'static str,
        asked: &impl serde::Serialize,
    ) -> Result<T, StatusCode> {
        self.page.hub.view.ask(path, asked).await
    }

    /// The page of what `explain` says of something.
    async fn explain(&self, kind: &str, name: &str, asked: &ExplainQuery) -> Shown {
        let said: ExplainAnswer = self.ask(view::EXPLAIN, asked).await?;
        let main = html! {
            (subject::headed(kind, name, &said))
            @if let ExplainQuery::Driver(driver) = asked {
                p .more {
                    a href={"/nodes?driver=" (link::encode(driver.as_str()))} {
                        "the nodes that have it"
                    }
                }
            }
        };
        Ok(self.show(name, Tab::Other, &[NODES, CALLS], main))
    }
}

async fn overview(Extension(visit): Look, Query(asked): Query<PageQuery>) -> Shown {
    let map = visit.page.hub.map(&visit.moment, &asked.by).await?;
    let main = views::overview::overview(&visit.moment.snapshot, &map);
    Ok(visit.show("Overview", Tab::Overview, &[], main))
}

async fn wrong(Extension(visit): Look) -> Response {
    let main = views::wrong::all(&visit.moment.snapshot);
    visit.show("What is wrong", Tab::Overview, &[NODES, CALLS], main)
}

async fn nodes(Extension(visit): Look, Query(wanted): Query<NodeFilter>) -> Response {
    let main = lists::nodes(&visit.moment.snapshot, &wanted);
    visit.show("Nodes", Tab::Nodes, &[NODES], main)
}

async fn volumes(Extension(visit): Look, Query(asked): Query<PageQuery>) -> Response {
    let main = lists::volumes(&visit.moment.snapshot.troubled, &asked.state);
    visit.show("Volumes", Tab::Volumes, &[CALLS], main)
}

async fn calls(Extension(visit): Look) -> Shown {
    let calls: CallsPage = visit.ask(view::CALLS, &()).await?;
    let main = views::calls::calls(&calls, visit.moment.snapshot.at);
    Ok(visit.show("Calls", Tab::Calls, &[CALLS], main))
}

async fn certificates(Extension(visit): Look) -> Response {
    let main = lists::certificates(&visit.moment.snapshot);
    visit.show("Certificates", Tab::Certificates, &[NODES], main)
}

async fn find(Extension(visit): Look, Query(asked): Query<PageQuery>) -> Shown {
    let text = asked.q.trim();
    let found: Found = visit.ask(view::FIND, &TextOf { text: text.into() }).await?;
    if let Some(only) = lists::only(&found, text) {
        return Ok(Redirect::to(&only).into_response());
    }
    let main = lists::find(text, &found);
    Ok(Visit { query: text.into(), ..visit }.show("Search", Tab::Other, &[], main))
}

async fn node(Extension(visit): Look, Path(node): Path<NodeName>) -> Shown {
    let snapshot = &visit.moment.snapshot;
    let cell = snapshot.node(node.as_str()).ok_or(StatusCode::NOT_FOUND)?;
    let shown: NodePage = visit.ask(view::NODE, &NodeOf { node: node.clone() }).await?;
    let main = views::node::node(cell, &shown, snapshot.at);
    Ok(visit.show(node.as_str(), Tab::Nodes, &[node.as_str()], main))
}

async fn driver(Extension(visit): Look, Path(driver): Path<DriverName>) -> Shown {
    visit.explain("Driver", driver.as_str(), &ExplainQuery::Driver(driver.clone())).await
}

async fn pv(Extension(visit): Look, Path(name): Path<String>) -> Shown {
    visit.explain("PersistentVolume", &name, &ExplainQuery::Pv(name.clone())).await
}

async fn pod(Extension(visit): Look, Path((space, name)): Path<(String, String)>) -> Shown {
    let pod = format!("{space}/{name}");
    visit.explain("Pod", &pod, &ExplainQuery::Pod(pod.clone())).await
}

async fn claim(Extension(visit): Look, Path((space, name)): Path<(String, String)>) -> Shown {
    let claim = format!("{space}/{name}");
    let shown: ClaimPage = visit.ask(view::CLAIM, &TextOf { text: claim.clone() }).await?;
    let mut about = vec![CALLS, NODES];
    about.extend(shown.volume.as_ref().map(|volume| &*volume.id));
    let main = html! {
        (subject::headed("Claim", &claim, &shown.explanation))
        @if let Some(VolumeOf { driver, id }) = &shown.volume {
            p .more { "volume " (link::volume(driver, id)) }
            (subject::life("The life of its volume", &shown.life, visit.moment.snapshot.at))
        }
    };
    Ok(visit.show(&claim, Tab::Other, &about, main))
}

async fn volume(Extension(visit): Look, Path((driver, id)): Path<(DriverName, String)>) -> Shown {
    let shown: VolumePage = visit.ask(view::VOLUME, &VolumeOf { driver, id }).await?;
    let now = visit.moment.snapshot.at;
    let title = link::short(&shown.id);
    let mut about = vec![&*shown.id];
    if let Some(facts) = &shown.facts {
        about.extend([facts.node.as_str()].into_iter().chain(facts.name.as_deref()));
    }
    let main = html! {
        (subject::headed("Volume", &title, &shown.explanation))
        @if let Some(facts) = &shown.facts { (views::node::volume(facts, now)) }
        (subject::life("Its life", &shown.life, now))
    };
    Ok(visit.show(&title, Tab::Volumes, &about, main))
}
