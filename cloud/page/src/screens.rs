//! Makes each page: asks csi-cloud for what it shows, and hands that to its view.
//! Nothing here writes HTML.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Extension, Router};
use http::StatusCode;
use http::header::RETRY_AFTER;
use maud::{Markup, html};
use proto::admin::view;
use proto::admin::view::{
    Calls, ClaimPage, Explanation, Found, NodeOf, NodePage, NodeState, Subject, TextOf, VolumeOf,
    VolumePage,
};
use proto::host::plain;
use proto::names::{DriverName, NodeName};
use serde::Deserialize;

use crate::access::guard::Pass;
use crate::events::{CALLS, NODES};
use crate::hub::Moment;
use crate::page::{Page, html as answered};
use crate::view_client::NoAnswer;
use crate::views;
use crate::views::frame;
use crate::views::frame::{Frame, Tab};
use crate::views::link;
use crate::views::map::By;

/// A page without its frame.
struct Screen {
    title: String,
    tab: Tab,
    about: Vec<String>,
    main: Markup,
}

/// The reason for no page.
enum NoScreen {
    Missing,
    Away,
    Elsewhere(String),
}

impl From<NoAnswer> for NoScreen {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Unknown => Self::Missing,
            NoAnswer::Away => Self::Away,
        }
    }
}

type Made = Result<Screen, NoScreen>;

/// The keys of queries.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Asked {
    q: String,
    by: String,
    state: String,
    driver: String,
    name: String,
    after: String,
}

impl Screen {
    fn new(title: impl Into<String>, tab: Tab, about: &[&str], main: Markup) -> Self {
        let about = about.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.into(), tab, about, main }
    }
}

/// The routes of the pages.
pub(crate) fn routes() -> Router<Arc<Page>> {
    Router::new()
        .route("/", get(fixed))
        .route("/{page}", get(fixed))
        .route("/{kind}/{name}", get(about_one))
        .route("/{kind}/{scope}/{name}", get(about_two))
}

/// The page for what is not there.
pub(crate) async fn missing(
    State(page): State<Arc<Page>>,
    Extension(pass): Extension<Pass>,
) -> Response {
    let Some(moment) = page.hub.current().await else { return away() };
    framed(&page, &moment, pass, "", Err(NoScreen::Missing))
}

async fn fixed(
    State(page): State<Arc<Page>>,
    Extension(pass): Extension<Pass>,
    Query(asked): Query<Asked>,
    name: Option<Path<String>>,
) -> Response {
    let name = name.map(|Path(name)| name).unwrap_or_default();
    let Some(moment) = page.hub.current().await else { return away() };
    let made = fixed_screen(&page, &moment, &name, &asked).await;
    framed(&page, &moment, pass, &asked.q, made)
}

async fn fixed_screen(page: &Page, moment: &Moment, name: &str, asked: &Asked) -> Made {
    match name {
        "" => overview(page, moment, &asked.by).await,
        "wrong" => {
            let main = views::wrong::all(&moment.snapshot);
            Ok(Screen::new("What is wrong", Tab::Overview, &[NODES, CALLS], main))
        }
        "nodes" => Ok(nodes(moment, asked)),
        "volumes" => {
            let main = views::volumes::volumes(&moment.snapshot.troubled, given(&asked.state));
            Ok(Screen::new("Volumes", Tab::Volumes, &[CALLS], main))
        }
        "calls" => {
            let calls: Calls = page.hub.view().ask(view::CALLS, &()).await?;
            let main = views::calls::calls(&calls, moment.snapshot.at);
            Ok(Screen::new("Calls", Tab::Calls, &[CALLS], main))
        }
        "certificates" => {
            let main = views::certificates::certificates(&moment.snapshot);
            Ok(Screen::new("Certificates", Tab::Certificates, &[NODES], main))
        }
        "find" => find(page, asked.q.trim()).await,
        _ => Err(NoScreen::Missing),
    }
}

async fn about_one(
    State(page): State<Arc<Page>>,
    Extension(pass): Extension<Pass>,
    Path((kind, name)): Path<(String, String)>,
) -> Response {
    let Some(moment) = page.hub.current().await else { return away() };
    let made = match kind.as_str() {
        "node" => node(&page, &moment, &name).await,
        "driver" => driver(&page, &name).await,
        "pv" => pv(&page, &name).await,
        _ => Err(NoScreen::Missing),
    };
    framed(&page, &moment, pass, "", made)
}

async fn about_two(
    State(page): State<Arc<Page>>,
    Extension(pass): Extension<Pass>,
    Path((kind, scope, name)): Path<(String, String, String)>,
) -> Response {
    let Some(moment) = page.hub.current().await else { return away() };
    let made = match kind.as_str() {
        "volume" => volume(&page, &moment, &scope, &name).await,
        "claim" => claim(&page, &moment, &format!("{scope}/{name}")).await,
        "pod" => pod(&page, &format!("{scope}/{name}")).await,
        _ => Err(NoScreen::Missing),
    };
    framed(&page, &moment, pass, "", made)
}

/// A page in its frame.
fn framed(page: &Page, moment: &Moment, pass: Pass, query: &str, made: Made) -> Response {
    let (status, screen) = match made {
        Ok(screen) => (StatusCode::OK, screen),
        Err(NoScreen::Missing) => (StatusCode::NOT_FOUND, not_found()),
        Err(NoScreen::Away) => return away(),
        Err(NoScreen::Elsewhere(href)) => return Redirect::to(&href).into_response(),
    };
    let frame = Frame {
        title: &screen.title,
        tab: screen.tab,
        about: screen.about,
        revision: format!("{}-{}", page.hub.epoch(), moment.feed.last()),
        now: moment.snapshot.at,
        query,
        has_session: matches!(pass, Pass::Session(_)),
    };
    answered(status, frame::page(&frame, &screen.main))
}

fn away() -> Response {
    let shown = views::login::away();
    ([(RETRY_AFTER, "5")], answered(StatusCode::SERVICE_UNAVAILABLE, shown)).into_response()
}

fn not_found() -> Screen {
    let main = html! {
        h1 { "Not found" }
        p { "csi-cloud knows no such page, node or driver. The search above finds what it knows." }
    };
    Screen::new("Not found", Tab::Other, &[], main)
}

async fn overview(page: &Page, moment: &Moment, by: &str) -> Made {
    let map = page.hub.map(moment, &By::parse(by)).await?;
    let main = views::overview::overview(&moment.snapshot, &map);
    Ok(Screen::new("Overview", Tab::Overview, &[], main))
}

async fn find(page: &Page, text: &str) -> Made {
    let found: Found = page.hub.view().ask(view::FIND, &TextOf { text: text.into() }).await?;
    if let Some(only) = views::find::only(&found, text) {
        return Err(NoScreen::Elsewhere(only));
    }
    Ok(Screen::new("Search", Tab::Other, &[], views::find::find(text, &found)))
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn nodes(moment: &Moment, asked: &Asked) -> Screen {
    let wanted = views::nodes::NodeFilter {
        state: NodeState::of_name(&asked.state),
        driver: given(&asked.driver).map(str::to_owned),
        text: asked.name.clone(),
        after: given(&asked.after).map(str::to_owned),
    };
    Screen::new("Nodes", Tab::Nodes, &[NODES], views::nodes::nodes(&moment.snapshot, &wanted))
}

fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, NoScreen> {
    text.parse().map_err(|_| NoScreen::Missing)
}

async fn node(page: &Page, moment: &Moment, name: &str) -> Made {
    let asked = NodeOf { node: parsed::<NodeName>(name)? };
    let cell = moment.snapshot.node(name).ok_or(NoScreen::Missing)?;
    let shown: NodePage = page.hub.view().ask(view::NODE, &asked).await?;
    let main = views::node::node(cell, &shown, moment.snapshot.at);
    Ok(Screen::new(name, Tab::Nodes, &[name], main))
}

async fn driver(page: &Page, name: &str) -> Made {
    let driver: DriverName = parsed(name)?;
    let href = format!("/nodes?driver={}", link::encode(name));
    let main = explained(page, "Driver", name, &Subject::Driver(driver)).await?;
    let main = html! { (main) p .more { a href=(href) { "the nodes that have it" } } };
    Ok(Screen::new(name, Tab::Other, &[NODES], main))
}

async fn pv(page: &Page, name: &str) -> Made {
    let main = explained(page, "PersistentVolume", name, &Subject::Pv(name.to_owned())).await?;
    Ok(Screen::new(name, Tab::Other, &[NODES, CALLS], main))
}

async fn pod(page: &Page, name: &str) -> Made {
    let main = explained(page, "Pod", name, &Subject::Pod(name.to_owned())).await?;
    Ok(Screen::new(name, Tab::Other, &[NODES, CALLS], main))
}

async fn volume(page: &Page, moment: &Moment, driver: &str, id: &str) -> Made {
    let asked = VolumeOf { driver: parsed(driver)?, id: id.to_owned() };
    let shown: VolumePage = page.hub.view().ask(view::VOLUME, &asked).await?;
    let VolumePage { id, facts, explanation, life } = shown;
    let mut about = vec![id.clone()];
    about.extend(facts.iter().map(|facts| facts.node.to_string()));
    about.extend(facts.iter().filter_map(|facts| facts.name.clone()));
    let title = link::short(&id);
    let main = html! {
        (headed("Volume", &title, &explanation))
        @if let Some(facts) = &facts { (views::node::volume(facts, moment.snapshot.at)) }
        (views::timeline::timeline("Its life", &life, moment.snapshot.at))
    };
    Ok(Screen { title, tab: Tab::Volumes, about, main })
}

async fn claim(page: &Page, moment: &Moment, name: &str) -> Made {
    let shown: ClaimPage = page.hub.view().ask(view::CLAIM, &TextOf { text: name.into() }).await?;
    let mut about = vec![CALLS.to_owned(), NODES.to_owned()];
    about.extend(shown.volume.iter().map(|volume| volume.id.clone()));
    let main = html! {
        (headed("Claim", name, &shown.explanation))
        @if let Some(VolumeOf { driver, id }) = &shown.volume {
            p .more {
                a href=(link::volume(driver, id)) { "volume " (link::short(&plain(id))) }
            }
            (views::timeline::timeline("The life of its volume", &shown.life, moment.snapshot.at))
        }
    };
    Ok(Screen { title: name.to_owned(), tab: Tab::Other, about, main })
}

/// What `explain` says of something, with its name above.
async fn explained(
    page: &Page,
    kind: &str,
    name: &str,
    subject: &Subject,
) -> Result<Markup, NoScreen> {
    let explanation: Explanation = page.hub.view().ask(view::EXPLAIN, subject).await?;
    Ok(headed(kind, name, &explanation))
}

fn headed(kind: &str, name: &str, explanation: &Explanation) -> Markup {
    html! {
        p .kind { (kind) }
        h1 { (plain(name)) }
        (views::subject::explanation(explanation))
    }
}
