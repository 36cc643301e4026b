//! The page as a browser gets it, over a csi-cloud that is played; its colours; and its crates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::{Extension, Router};
use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, LOCATION, ORIGIN,
    RETRY_AFTER, SET_COOKIE,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proto::admin::view;
use proto::admin::view::{
    CallsPage, ClaimPage, ExplainAnswer, FleetChange, FleetMessage, Found, GroupValues, Hit,
    NodeDetails, NodePage, NodeState, PageTarget, Snapshot, Timeline, VolumePage,
};
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use tempfile::TempDir;
use tower::ServiceExt;

use crate::access::guard::Peer;
use crate::access::guard::tests::{TOKEN, guard};
use crate::hub::FleetHub;
use crate::state::PageState;
use crate::tls::Tls;
use crate::views::tests::{fleet, node, problem};
use crate::web;

const FORM: &str = "application/x-www-form-urlencoded";

fn explanation(text: &str) -> ExplainAnswer {
    ExplainAnswer { steps: Vec::new(), is_fine: false, text: text.into(), next: "next".into() }
}

/// The answer of the played csi-cloud at a path; `None` if it does not know the thing.
fn played(path: &str, body: &str) -> Option<String> {
    if body.contains("other") || body.contains("Shop") {
        return None;
    }
    let life = Timeline::default();
    let json = match path {
        view::EXPLAIN => serde_json::to_string(&explanation("explained")),
        view::NODE => serde_json::to_string(&NodePage {
            facts: NodeDetails::default(),
            explanation: explanation("node n1 has had no link"),
            volumes: Vec::new(),
            has_more: false,
            calls: Vec::new(),
        }),
        view::VOLUME => serde_json::to_string(&VolumePage {
            id: "v/1".into(),
            facts: None,
            explanation: explanation("no node is known to have volume v/1"),
            life,
        }),
        view::CLAIM => {
            let explanation = explanation("csi-cloud has no record of claim");
            serde_json::to_string(&ClaimPage { explanation, volume: None, life })
        }
        view::CALLS => serde_json::to_string(&CallsPage::default()),
        view::GROUPS => serde_json::to_string(&GroupValues::default()),
        view::FIND if body.contains("\"n1\"") => {
            let target = PageTarget::Node("n1".parse().unwrap());
            let hit = Hit { target, label: "n1".into(), state: None, detail: String::new() };
            serde_json::to_string(&Found { hits: vec![hit], is_cut: false })
        }
        view::FIND => serde_json::to_string(&Found::default()),
        _ => return None,
    };
    json.ok()
}

/// A csi-cloud that answers questions at its socket view, and has no stream.
fn csi_cloud(path: &std::path::Path, tasks: &Tasks) {
    let listener = tokio::net::UnixListener::bind(path).unwrap();
    let serving = tasks.clone();
    tasks.spawn_until_stop("csi-cloud", async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let answer = played(&path, std::str::from_utf8(&body).unwrap());
                let mut response = Response::new(Full::new(Bytes::from(
                    answer.clone().unwrap_or_else(|| r#"{"error": "unknown"}"#.into()),
                )));
                if answer.is_none() {
                    *response.status_mut() = StatusCode::NOT_FOUND;
                }
                Ok::<_, std::convert::Infallible>(response)
            });
            let served = hyper::server::conn::http1::Builder::new();
            let connection = served.serve_connection(TokioIo::new(stream), service);
            serving.spawn_until_stop("connection", async move { drop(connection.await) });
        }
    });
}

/// A fleet with one node that is away.
fn world_fleet() -> Snapshot {
    let mut fleet = fleet(&[("n1", NodeState::Away)]);
    fleet.problems = vec![problem("node n1 has had no link", 1)];
    fleet.node_ca.insert("ca".into());
    fleet
}

/// A page over that fleet.
struct World {
    router: Router,
    page: Arc<PageState>,
    tokens: PathBuf,
    tasks: Tasks,
    _dirs: [TempDir; 2],
}

impl World {
    fn new() -> Self {
        let tasks = Tasks::default();
        let dir = tempfile::tempdir().unwrap();
        let view = dir.path().join("view.sock");
        csi_cloud(&view, &tasks);
        let hub = FleetHub::new(&view);
        hub.show(FleetMessage::Snapshot(Box::new(world_fleet())));
        let (tokens, guard) = guard();
        let path = tokens.path().join("tokens");
        let page = Arc::new(PageState::new(hub, guard, None, tasks.clone()));
        let router = web::router(page.clone());
        Self { router, page, tokens: path, tasks, _dirs: [dir, tokens] }
    }

    async fn send_as(
        &self,
        peer: Peer,
        request: http::request::Builder,
        body: &str,
    ) -> Response<Body> {
        let request = request.body(Body::from(body.to_owned())).unwrap();
        self.router.clone().layer(Extension(peer)).oneshot(request).await.unwrap()
    }

    async fn send(&self, request: http::request::Builder, body: &str) -> Response<Body> {
        self.send_as(Peer::default(), request, body).await
    }

    /// The page for somebody who has the token.
    async fn get(&self, path: &str) -> (StatusCode, String) {
        read(self.send(with_token(path), "").await).await
    }
}

fn with_token(path: &str) -> http::request::Builder {
    Request::get(path).header(AUTHORIZATION, format!("Bearer {TOKEN}"))
}

fn log_in() -> http::request::Builder {
    Request::post("/login").header(CONTENT_TYPE, FORM).header(HOST, "page.example:8443")
}

async fn read(answer: Response<Body>) -> (StatusCode, String) {
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn without_a_pass_there_is_only_the_login() {
    let page = World::new();
    for path in ["/", "/nodes", "/node/n1", "/events", "/find?q=n1", "/none", "/a/b/c/d"] {
        let answer = page.send(Request::get(path), "").await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        let (_, text) = read(answer).await;
        assert!(!text.contains("n1"), "{text}");
        let browser = Request::get(path).header("accept", "text/html");
        assert_eq!(page.send(browser, "").await.headers()[LOCATION], "/login", "{path}");
    }
    for path in ["/login", "/page.css", "/page.js?v=1", "/icon.svg"] {
        let answer = page.send(Request::get(path), "").await;
        assert!(answer.headers().contains_key(CONTENT_SECURITY_POLICY), "{path}");
        let (status, text) = read(answer).await;
        assert!(status == StatusCode::OK && !text.contains("n1"), "{path}");
    }
}

#[tokio::test]
async fn a_session_begins_with_the_token_and_ends_with_a_logout() {
    let page = World::new();
    let good = format!("token={TOKEN}");
    let (status, text) = read(page.send(log_in(), "token=wrong").await).await;
    assert!(status == StatusCode::UNAUTHORIZED && text.contains("no token of this page"));
    let answer = page.send(log_in(), &good).await;
    assert_eq!(
        (answer.status(), &answer.headers()[LOCATION]),
        (StatusCode::SEE_OTHER, &"/".parse().unwrap())
    );
    let cookie =
        answer.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let request = || Request::get("/").header(COOKIE, &cookie);
    let (status, text) = read(page.send(request(), "").await).await;
    assert!(status == StatusCode::OK && text.contains("Log out") && text.contains("/node/n0"));
    page.send(Request::post("/logout").header(COOKIE, &cookie), "").await;
    assert_eq!(page.send(request(), "").await.status(), StatusCode::UNAUTHORIZED);
    let (status, _) = read(page.send(log_in(), &"x".repeat(5_000)).await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_login_or_logout_of_another_site_is_refused() {
    let page = World::new();
    let good = format!("token={TOKEN}");
    for (header, value, expected) in [
        ("sec-fetch-site", "cross-site", StatusCode::FORBIDDEN),
        ("sec-fetch-site", "same-site", StatusCode::FORBIDDEN),
        (ORIGIN.as_str(), "https://evil.example", StatusCode::FORBIDDEN),
        (ORIGIN.as_str(), "https://page.example", StatusCode::FORBIDDEN),
        (ORIGIN.as_str(), "null", StatusCode::FORBIDDEN),
        (ORIGIN.as_str(), "https://page.example:8443", StatusCode::SEE_OTHER),
        ("sec-fetch-site", "same-origin", StatusCode::SEE_OTHER),
    ] {
        let answer = page.send(log_in().header(header, value), &good).await;
        assert_eq!(answer.status(), expected, "{header}: {value}");
        let out = Request::post("/logout").header(HOST, "page.example:8443").header(header, value);
        assert_eq!(page.send(out, "").await.status(), expected, "{header}: {value}");
    }
}

#[tokio::test]
async fn wrong_tokens_are_limited_and_a_good_one_is_not() {
    let page = World::new();
    let mut last = None;
    for _ in 0..20 {
        last = Some(page.send(log_in(), "token=wrong").await);
    }
    let last = last.unwrap();
    assert_eq!(last.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(last.headers().contains_key(RETRY_AFTER));
    let good = page.send(log_in(), &format!("token={TOKEN}")).await;
    assert_eq!(good.status(), StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_persons_certificate_lets_in_unless_its_ca_is_that_of_the_nodes() {
    let page = World::new();
    let person = Peer { has_certificate: true, ..Peer::default() };
    let shown = page.send_as(person.clone(), Request::get("/nodes"), "").await;
    assert_eq!(shown.status(), StatusCode::OK);
    let mut other = World::new();
    let (_dir, guard) = guard();
    let hub = FleetHub::new("/none".as_ref());
    hub.show(FleetMessage::Snapshot(Box::new(world_fleet())));
    let tls = Some(Tls::with_client_ca("ca"));
    let page_of_nodes = PageState::new(hub, guard, tls, other.tasks.clone());
    other.router = web::router(Arc::new(page_of_nodes));
    let refused = other.send_as(person, Request::get("/nodes"), "").await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn every_page_is_made_and_only_shows() {
    let page = World::new();
    for (path, part) in [
        ("/", "node n1 has had no link"),
        ("/?by=driver", "d.example"),
        ("/wrong", "look there"),
        ("/nodes?state=away", "1 of 1 nodes"),
        ("/volumes", "No volume is known to be in trouble"),
        ("/calls", "No call is in flight"),
        ("/certificates", "of 1 that have a link"),
        ("/find?q=nothing", "Nothing is known by the name"),
        ("/node/n1", "node n1 has had no link"),
        ("/driver/d.example", "explained"),
        ("/volume/d.example/v%2F1", "no node is known to have volume v/1"),
        ("/claim/shop/data", "csi-cloud has no record of claim"),
        ("/pod/shop/web", "explained"),
        ("/pv/pvc-1", "explained"),
    ] {
        let (status, text) = page.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        assert!(text.contains(part), "{path} has no {part:?}: {text}");
        assert!(text.contains("<main id=\"main\"") && text.contains("<h1"), "{path}: {text}");
    }
    for path in ["/none", "/node/other", "/node/a%20b", "/claim/Shop/data", "/a/b/c/d"] {
        assert_eq!(page.get(path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    let long = format!("/find?q={}", "x".repeat(10_000));
    assert_eq!(page.get(&long).await.0, StatusCode::URI_TOO_LONG);
    for method in [Method::POST, Method::DELETE, Method::PUT] {
        let request = Request::builder().method(method).uri("/node/n1");
        assert_eq!(page.send(request, "").await.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
    let found = page.send(with_token("/find?q=+n1+"), "").await;
    assert_eq!(found.headers()[LOCATION], "/node/n1");
}

#[tokio::test(start_paused = true)]
async fn without_csi_cloud_the_page_says_so() {
    let mut page = World::new();
    let (_dir, guard) = guard();
    let away = PageState::new(FleetHub::new("/none".as_ref()), guard, None, page.tasks.clone());
    page.router = web::router(Arc::new(away));
    let (status, text) = page.get("/").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("csi-cloud does not answer at its socket view"), "{text}");
}

async fn event(body: &mut Body) -> Option<Bytes> {
    body.frame().await.map(|frame| frame.unwrap().into_data().unwrap())
}

#[tokio::test(start_paused = true)]
async fn who_watches_gets_events_and_no_more_may_watch_than_there_is_room_for() {
    let page = World::new();
    let mut watching = Vec::new();
    for _ in 0..200 {
        let answer = page.send(with_token("/events"), "").await;
        assert_eq!(
            (answer.status(), &answer.headers()[CONTENT_TYPE]),
            (StatusCode::OK, &"text/event-stream".parse().unwrap())
        );
        watching.push(answer.into_body());
    }
    let full = page.send(with_token("/events"), "").await;
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    let first = &mut watching[0];
    assert_eq!(event(first).await.unwrap(), ": \n\n");
    let anew = event(first).await.unwrap();
    assert!(anew.starts_with(b"id: ") && anew.ends_with(b"\n\n"), "{anew:?}");
    let nodes = vec![node("n1", NodeState::Linked)];
    let change = FleetChange { nodes, ..FleetChange::default() };
    page.page.hub.show(FleetMessage::Change(Box::new(change)));
    let changed = event(first).await.unwrap();
    assert!(String::from_utf8_lossy(&changed).contains("\"n1\":\"linked\""), "{changed:?}");
    watching.clear();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(page.send(with_token("/events"), "").await.status(), StatusCode::OK);
    page.tasks.finish(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn events_end_when_their_token_is_taken_out_of_the_file() {
    let page = World::new();
    let mut events = page.send(with_token("/events"), "").await.into_body();
    for _ in 0..2 {
        event(&mut events).await.unwrap();
    }
    let other = "f".repeat(40);
    publish(&page.tokens, other.as_bytes(), 0o600, Existing::Replace).unwrap();
    page.page.guard.reload().unwrap();
    let ended = async { while event(&mut events).await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
}

#[test]
fn the_page_depends_on_proto_alone_of_our_crates() {
    let manifest = include_str!("../Cargo.toml");
    let root = include_str!("../../../Cargo.toml");
    let paths = root.lines().filter(|line| line.contains("path = \""));
    let ours: Vec<_> = paths.filter_map(|line| line.split(' ').next()).collect();
    assert!(ours.contains(&"cloud") && ours.contains(&"proto"), "{ours:?}");
    let names = |line: &str, name: &str| {
        line.split(['.', ' ', '=']).next() == Some(name) || line.contains(&format!("\"{name}\""))
    };
    for name in ours.iter().filter(|name| **name != "proto") {
        let used = manifest.lines().find(|line| names(line, name));
        assert_eq!(used, None, "csi-page must not link {name}");
    }
    assert!(!manifest.contains("path = \"..") && manifest.contains("proto.workspace = true"));
}

/// The variables of the light or the dark scheme, as red, green and blue.
fn colours(css: &str, is_dark: bool) -> Vec<(String, [f64; 3])> {
    let pairs = css.lines().filter_map(|line| {
        let line = line.trim().strip_prefix("--")?.strip_suffix(");")?;
        let (name, colours) = line.split_once(": light-dark(#")?;
        let (light, dark) = colours.split_once(", #")?;
        Some((name, if is_dark { dark } else { light }))
    });
    let channel =
        |hex: &str, at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
    pairs.map(|(name, hex)| (name.to_owned(), [0, 2, 4].map(|at| channel(hex, at)))).collect()
}

/// WCAG: "relative luminance".
fn luminance([red, green, blue]: [f64; 3]) -> f64 {
    let linear =
        |of: f64| if of <= 0.040_45 { of / 12.92 } else { ((of + 0.055) / 1.055).powf(2.4) };
    0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
}

/// WCAG: "contrast ratio".
fn ratio(one: [f64; 3], other: [f64; 3]) -> f64 {
    let [one, other] = [one, other].map(|of| luminance(of) + 0.05);
    one.max(other) / one.min(other)
}

#[test]
fn texts_and_marks_stand_out_in_both_schemes() {
    let css = include_str!("page.css");
    for is_dark in [false, true] {
        let colours = colours(css, is_dark);
        let of = |name: &str| colours.iter().find(|(known, _)| known == name).unwrap().1;
        let check = |front: &str, ground: &str, least: f64| {
            let ratio = ratio(of(front), of(ground));
            assert!(ratio >= least, "--{front} on --{ground}: {ratio:.2}, and {least} is needed");
        };
        for ground in ["ground", "surface", "button"] {
            for text in ["text", "muted", "link"] {
                check(text, ground, 4.5);
            }
        }
        for word in ["fault", "warning", "fine"] {
            check(word, "surface", 4.5);
            check(word, &format!("{word}-ground"), 4.5);
            check("text", &format!("{word}-ground"), 4.5);
        }
        for state in ["away", "down", "revoked", "apart", "ending", "linked", "removed"] {
            check(state, "surface", 3.0);
        }
        check("focus", "ground", 3.0);
        check("muted", "surface", 4.5);
    }
    assert!(css.contains(":focus-visible"));
}
