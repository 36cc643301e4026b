//! Makes each page: reads what it shows, and hands that to its view.

use std::sync::Arc;

use http::StatusCode;
use maud::{Markup, html};
use proto::csi::{Id, Method};
use proto::names::{DriverName, NodeName};

use super::answer::{self, Answer};
use super::events::{CALLS, NODES};
use super::find::find;
use super::group::By;
use super::hub::{Hub, Moment};
use super::node_state::NodeState;
use super::timeline;
use super::views::frame::{Frame, Tab};
use super::views::{self, frame};
use crate::admin::admin_state::AdminState;
use crate::admin::volumes::VolumesQuery;
use crate::explain::answer::{Explanation, Verdict};
use crate::explain::ended::failure;
use crate::explain::subject::{Namespaced, Subject};

/// Calls at a node that are shown.
const CALLS_AT_NODE: usize = 30;

/// What a browser asks for.
pub(super) struct Asked<'a> {
    /// The parts of the path.
    pub(super) segments: Vec<&'a str>,
    /// The value of a key of the query.
    pub(super) value: &'a (dyn Fn(&str) -> Option<String> + Send + Sync),
    /// Whether a session can be ended.
    pub(super) has_session: bool,
}

/// All pages.
pub(super) struct Screens {
    hub: Arc<Hub>,
}

/// A page without its frame.
struct Screen {
    title: String,
    tab: Tab,
    about: Vec<String>,
    main: Markup,
}

impl Screen {
    fn new(title: impl Into<String>, tab: Tab, about: &[&str], main: Markup) -> Self {
        let about = about.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.into(), tab, about, main }
    }
}

impl Screens {
    /// The pages of what `hub` looks at.
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    /// The page that is asked for.
    pub(super) async fn show(&self, asked: &Asked<'_>) -> Answer {
        let moment = self.hub.current().await;
        let text = |key: &str| (asked.value)(key).unwrap_or_default();
        let query = text("q");
        let screen = match asked.segments.as_slice() {
            [""] => self.overview(&moment, &text("by")),
            ["wrong"] => {
                let main = views::wrong::all(&moment.snapshot);
                Screen::new("What is wrong", Tab::Overview, &[NODES, CALLS], main)
            }
            ["nodes"] => nodes(&moment, asked),
            ["volumes"] => {
                let state = (asked.value)("state");
                let main = views::volumes::volumes(&moment.troubled, state.as_deref());
                Screen::new("Volumes", Tab::Volumes, &[CALLS], main)
            }
            ["calls"] => self.calls(&moment),
            ["certificates"] => {
                let main = views::certificates::certificates(&moment.snapshot);
                Screen::new("Certificates", Tab::Certificates, &[NODES], main)
            }
            ["find"] => {
                let found = find(self.hub.state(), &moment.snapshot, query.trim()).await;
                if let Some(only) = found.only(query.trim()) {
                    return answer::redirect(only, None);
                }
                let main = views::find::find(query.trim(), &found);
                Screen::new("Search", Tab::Other, &[], main)
            }
            segments => match self.about(&moment, segments).await {
                Some(screen) => screen,
                None => return self.framed(&moment, asked, "", &not_found()),
            },
        };
        self.framed(&moment, asked, &query, &screen)
    }

    fn framed(&self, moment: &Moment, asked: &Asked<'_>, query: &str, screen: &Screen) -> Answer {
        let frame = Frame {
            title: &screen.title,
            tab: screen.tab,
            about: screen.about.clone(),
            revision: format!("{}-{}", self.hub.epoch(), moment.feed.last()),
            now: moment.snapshot.at,
            query,
            has_session: asked.has_session,
        };
        let is_missing = screen.title == MISSING;
        let status = if is_missing { StatusCode::NOT_FOUND } else { StatusCode::OK };
        answer::page(status, frame::page(&frame, &screen.main))
    }

    fn overview(&self, moment: &Moment, by: &str) -> Screen {
        let map = self.hub.map(moment, &By::of(by));
        let main = views::overview::overview(&moment.snapshot, &map);
        Screen::new("Overview", Tab::Overview, &[], main)
    }

    fn calls(&self, moment: &Moment) -> Screen {
        let state = self.hub.state();
        let running = state.oldest_calls(views::calls::MOST);
        let ended = state.calls.ended.latest(|_| true);
        let main = views::calls::calls(&running, &ended, moment.snapshot.at);
        Screen::new("Calls", Tab::Calls, &[CALLS], main)
    }

    /// The page about one thing; none if there is no such kind, or it can have no such name.
    async fn about(&self, moment: &Moment, segments: &[&str]) -> Option<Screen> {
        let state = self.hub.state();
        match segments {
            ["node", node] => self.node(moment, &node.parse().ok()?).await,
            ["driver", driver] => {
                let driver: DriverName = driver.parse().ok()?;
                let main =
                    explained(state, "Driver", driver.as_str(), Subject::Driver(driver.clone()))
                        .await;
                let href = format!("/nodes?driver={}", views::link::encode(driver.as_str()));
                let main = html! { (main) p .more { a href=(href) { "the nodes that have it" } } };
                Some(Screen::new(driver.as_str(), Tab::Other, &[NODES], main))
            }
            ["volume", driver, id] => {
                let driver: DriverName = driver.parse().ok()?;
                // A name under which a volume was made leads to it.
                let made = timeline::made(state, &driver, id);
                Some(self.volume(moment, &driver, made.as_deref().unwrap_or(id)).await)
            }
            ["claim", namespace, name] => {
                let claim = format!("{namespace}/{name}").parse::<Namespaced>().ok()?;
                Some(self.claim(moment, claim).await)
            }
            ["pod", namespace, name] => {
                let pod = format!("{namespace}/{name}").parse::<Namespaced>().ok()?;
                let name = pod.to_string();
                let main = explained(state, "Pod", &name, Subject::Pod(pod)).await;
                Some(Screen::new(name, Tab::Other, &[NODES, CALLS], main))
            }
            ["pv", name] => {
                let subject = Subject::Pv((*name).to_owned());
                let main = explained(state, "PersistentVolume", name, subject).await;
                Some(Screen::new(*name, Tab::Other, &[NODES, CALLS], main))
            }
            _ => None,
        }
    }

    async fn node(&self, moment: &Moment, name: &NodeName) -> Option<Screen> {
        let state = self.hub.state();
        let cell = moment.snapshot.node(name.as_str())?;
        let view = state.node(name)?;
        let explanation = state.explain(&Subject::Node(name.clone())).await;
        let query = VolumesQuery { node: Some(name.clone()), ..VolumesQuery::default() };
        let volumes = state.volumes(&query).items;
        let ended = state.ended_at(name);
        let mut calls: Vec<_> =
            ended.iter().take(CALLS_AT_NODE).map(|call| timeline::ended(call)).collect();
        calls.reverse();
        let facts = views::node::NodeFacts {
            cell,
            view: &view,
            volumes: &volumes,
            calls: &calls,
            now: moment.snapshot.at,
        };
        let main = views::node::node(&facts, &views::subject::explanation(&explanation));
        Some(Screen::new(name.as_str(), Tab::Nodes, &[name.as_str()], main))
    }

    async fn volume(&self, moment: &Moment, driver: &DriverName, id: &str) -> Screen {
        let state = self.hub.state();
        let view = state.volume(driver, &Id::Volume(id.to_owned()));
        let explanation = match create_failed(state, driver, id).filter(|_| view.is_none()) {
            Some(verdict) => Explanation { steps: Vec::new(), verdict },
            None => {
                let volume = Subject::Volume { driver: driver.clone(), id: id.to_owned() };
                state.explain(&timeline::claim(state, driver, id).unwrap_or(volume)).await
            }
        };
        let explanation = headed("Volume", &views::link::short(id), &explanation);
        let life = timeline::of_volume(state, driver, id);
        let mut about = vec![id.to_owned()];
        about.extend(view.iter().map(|view| view.node.to_string()));
        about.extend(view.iter().filter_map(|view| view.name.clone()));
        let main = html! {
            (explanation)
            @if let Some(view) = &view { (views::node::volume(view, moment.snapshot.at)) }
            (views::timeline::timeline("Its life", &life, moment.snapshot.at))
        };
        Screen { title: views::link::short(id), tab: Tab::Volumes, about, main }
    }

    async fn claim(&self, moment: &Moment, claim: Namespaced) -> Screen {
        let state = self.hub.state();
        let explainer = state.explainer();
        let made = explainer.volume_of(&claim).await;
        let sent = explainer.create_of(&claim).await;
        let name = claim.to_string();
        let refused = state.calls.ended.for_claim(&name);
        let explanation = explained(state, "Claim", &name, Subject::Pvc(claim)).await;
        let known = made.or_else(|| sent.map(|(driver, _, name)| (driver, name)));
        let known = known.or_else(|| refused.map(|of| (of.driver.clone(), of.subject.to_string())));
        let mut about = vec![CALLS.to_owned(), NODES.to_owned()];
        about.extend(known.iter().map(|(_, id)| id.clone()));
        let main = html! {
            (explanation)
            @if let Some((driver, id)) = &known {
                p .more {
                    a href=(views::link::volume(driver, id)) {
                        "volume " (views::link::short(&proto::host::plain(id)))
                    }
                }
                @let life = timeline::of_volume(state, driver, id);
                (views::timeline::timeline("The life of its volume", &life, moment.snapshot.at))
            }
        };
        Screen { title: name, tab: Tab::Other, about, main }
    }
}

fn nodes(moment: &Moment, asked: &Asked<'_>) -> Screen {
    let text = |key: &str| (asked.value)(key).filter(|text| !text.is_empty());
    let wanted = views::nodes::NodeFilter {
        state: text("state").and_then(|state| NodeState::of_name(&state)),
        driver: text("driver"),
        text: text("name").unwrap_or_default(),
        after: text("after"),
    };
    Screen::new("Nodes", Tab::Nodes, &[NODES], views::nodes::nodes(&moment.snapshot, &wanted))
}

/// What `explain` says of something, with its name above.
async fn explained(state: &AdminState, kind: &str, name: &str, subject: Subject) -> Markup {
    headed(kind, name, &state.explain(&subject).await)
}

fn headed(kind: &str, name: &str, explanation: &Explanation) -> Markup {
    html! {
        p .kind { (kind) }
        h1 { (proto::host::plain(name)) }
        (views::subject::explanation(explanation))
    }
}

/// Why the last create under a name failed; none if the last call about it was no create. What was
/// sent to no node has no other record.
fn create_failed(state: &AdminState, driver: &DriverName, name: &str) -> Option<Verdict> {
    let ended = state.ended_about(driver, name);
    let last = ended.first()?;
    Method::of_name(last.rpc)?.creates()?;
    failure(last)
}

/// The title of the page for what is not there.
const MISSING: &str = "Not found";

fn not_found() -> Screen {
    let main = html! {
        h1 { "Not found" }
        p { "csi-cloud knows no such page, node or driver. The search above finds what it knows." }
    };
    Screen::new(MISSING, Tab::Other, &[], main)
}
