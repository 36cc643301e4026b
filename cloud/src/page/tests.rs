//! The page as a browser gets it, over a store in memory; and its colours.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, LOCATION, RETRY_AFTER, SET_COOKIE};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use proto::host::tasks::Tasks;
use tempfile::TempDir;

use super::answer::Answer;
use super::guard::Peer;
use super::guard::tests::{TOKEN, guard};
use super::hub::Hub;
use super::router::Router;
use super::views::overview::overview;
use crate::admin::admin_state::AdminState;
use crate::admin::tests::replicas::pair;
use crate::admin::tests::{admin_state, refuse};
use crate::explain::subject::Subject;
use crate::state::record::Node;
use crate::state::store::tests::etcd_server::EtcdServer;

/// A page over a store with one node that is away.
struct Page {
    router: Arc<Router>,
    state: Arc<AdminState>,
    tasks: Tasks,
    _dir: TempDir,
}

impl Page {
    async fn new() -> Self {
        let tasks = Tasks::default();
        let state = admin_state(&tasks);
        let written = state.store.write(|txn| {
            let node = Node { since: 1, removed: None };
            txn.set_node(&"n1".parse().unwrap(), Some(node));
        });
        written.await.unwrap();
        let state = Arc::new(state);
        let hub = Arc::new(Hub::new(state.clone()));
        tasks.spawn("looks", hub.clone().keep_looking(tasks.clone()));
        let (dir, guard) = guard();
        let router = Arc::new(Router::new(hub, guard, tasks.clone()));
        Self { router, state, tasks, _dir: dir }
    }

    async fn send(&self, request: http::request::Builder, body: &str) -> Answer {
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let request = request.body(body).unwrap();
        self.router.clone().answer(Peer::default(), request).await
    }

    /// What who has the token gets.
    async fn get(&self, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).header(AUTHORIZATION, format!("Bearer {TOKEN}"));
        read(self.send(request, "").await).await
    }
}

async fn read(answer: Answer) -> (StatusCode, String) {
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn without_a_pass_there_is_only_the_login() {
    let page = Page::new().await;
    for path in ["/", "/nodes", "/node/n1", "/events", "/find?q=n1", "/none"] {
        let answer = page.send(Request::get(path), "").await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        let (_, text) = read(answer).await;
        assert!(!text.contains("n1"), "{text}");
        let browser = Request::get(path).header("accept", "text/html");
        assert_eq!(page.send(browser, "").await.headers()[LOCATION], "/login", "{path}");
    }
    for path in ["/login", "/page.css", "/page.js?v=1", "/icon.svg"] {
        let (status, text) = read(page.send(Request::get(path), "").await).await;
        assert!(status == StatusCode::OK && !text.contains("n1"), "{path}");
    }
}

#[tokio::test]
async fn a_session_begins_with_the_token_and_ends_with_a_logout() {
    let page = Page::new().await;
    let log_in = |token: &str| {
        let form = "application/x-www-form-urlencoded";
        (Request::post("/login").header(CONTENT_TYPE, form), format!("token={token}"))
    };
    let (request, form) = log_in("wrong");
    let (status, text) = read(page.send(request, &form).await).await;
    assert!(status == StatusCode::UNAUTHORIZED && text.contains("no token of this page"));
    let (request, form) = log_in(TOKEN);
    let elsewhere = request.header("sec-fetch-site", "cross-site");
    assert_eq!(page.send(elsewhere, &form).await.status(), StatusCode::FORBIDDEN);
    let (request, form) = log_in(TOKEN);
    let answer = page.send(request, &form).await;
    assert_eq!(
        (answer.status(), &answer.headers()[LOCATION]),
        (StatusCode::SEE_OTHER, &"/".parse().unwrap())
    );
    let cookie =
        answer.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let request = || Request::get("/").header(COOKIE, &cookie);
    let (status, text) = read(page.send(request(), "").await).await;
    assert!(status == StatusCode::OK && text.contains("Log out") && text.contains("/node/n1"));
    page.send(Request::post("/logout").header(COOKIE, &cookie), "").await;
    assert_eq!(page.send(request(), "").await.status(), StatusCode::UNAUTHORIZED);
    let (request, _) = log_in(TOKEN);
    let (status, _) = read(page.send(request, &"x".repeat(5_000)).await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn failed_logins_are_limited() {
    let page = Page::new().await;
    let mut last = None;
    for _ in 0..20 {
        last = Some(page.send(Request::post("/login"), "token=wrong").await);
    }
    let last = last.unwrap();
    assert_eq!(last.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(last.headers().contains_key(RETRY_AFTER));
}

#[tokio::test]
async fn every_page_is_made_and_only_shows() {
    let page = Page::new().await;
    for (path, part) in [
        ("/", "node n1 has had no link"),
        ("/?by=driver", "no driver"),
        ("/wrong", "look at its power and network"),
        ("/nodes?state=away", "1 of 1 nodes"),
        ("/volumes", "No volume is known to be in trouble"),
        ("/calls", "No call is in flight"),
        ("/certificates", "of 0 that have a link"),
        ("/find?q=nothing", "Nothing is known by the name"),
        ("/node/n1", "node n1 has had no link"),
        ("/driver/d.example", "no node with driver d.example has ever linked"),
        ("/volume/d.example/v%2F1", "no node is known to have volume v/1"),
        ("/claim/shop/data", "csi-cloud has no record of claim shop/data"),
        ("/pod/shop/web", "this csi-cloud knows no Kubernetes"),
        ("/pv/pvc-1", "csi-cloud has no record of PersistentVolume pvc-1"),
    ] {
        let (status, text) = page.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        assert!(text.contains(part), "{path} has no {part:?}: {text}");
        assert!(text.contains("<main id=\"main\"") && text.contains("<h1"), "{path}: {text}");
    }
    for path in ["/none", "/node/other", "/node/a%20b", "/claim/Shop/data", "/node/%ff", "/a/b/c/d"]
    {
        assert_eq!(page.get(path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    let long = format!("/find?q={}", "x".repeat(10_000));
    assert_eq!(page.get(&long).await.0, StatusCode::URI_TOO_LONG);
    for method in [Method::POST, Method::DELETE, Method::PUT] {
        let request = Request::builder().method(method).uri("/node/n1");
        assert_eq!(page.send(request, "").await.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}

/// The first screen, once these csi-clouds are there, and whether each leads.
async fn first_screen(hub: &Hub, expected: &[(&str, bool)]) -> String {
    loop {
        let moment = hub.current().await;
        let several = moment.snapshot.several.as_ref().unwrap();
        let replicas = several.replicas.iter();
        let seen: Vec<_> = replicas.map(|of| (&*of.view.name, of.view.leads)).collect();
        if seen == expected {
            return overview(&moment.snapshot, "").into_string();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_first_screen_shows_the_csi_clouds_of_a_store_in_etcd() {
    let Some(server) = EtcdServer::start(&[]) else { return };
    let tasks = Tasks::default();
    // Both live to the end: one that ends hands over.
    let hubs = pair(&server, &tasks).await.map(|state| Hub::new(Arc::new(state)));
    for (hub, this) in hubs.iter().zip(["a", "b"]) {
        // The second one says a moment after its start that it is there.
        let seen = first_screen(hub, &[("a", true), ("b", false)]);
        let shown = tokio::time::timeout(Duration::from_secs(30), seen).await.unwrap();
        assert!(shown.contains(&format!("{this} (this one)</th>")), "{shown}");
    }
}

#[tokio::test]
async fn a_search_that_finds_one_thing_leads_there() {
    let page = Page::new().await;
    let request = || Request::get("/find?q=+n1+").header(AUTHORIZATION, format!("Bearer {TOKEN}"));
    let answer = page.send(request(), "").await;
    assert_eq!(answer.headers()[LOCATION], "/node/n1");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_create_was_refused_is_found_and_says_what_explain_says() {
    let page = Page::new().await;
    refuse(&page.state, "shop/stuck", "pvc-7", "n1");
    for text in ["stuck", "shop/stuck"] {
        let request = Request::get(format!("/find?q={text}"));
        let request = request.header(AUTHORIZATION, format!("Bearer {TOKEN}"));
        let answer = page.send(request, "").await;
        assert_eq!(answer.headers()[LOCATION], "/claim/shop/stuck", "{text}");
    }
    let (_, shown) = page.get("/claim/shop/stuck").await;
    let verdict = page.state.explain(&Subject::Pvc("shop/stuck".parse().unwrap())).await.verdict;
    assert!(verdict.text.ends_with("UNAVAILABLE: node n1 has no link"), "{verdict:?}");
    for part in [&*verdict.text, &verdict.next, "/volume/d.example/pvc-7"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_watches_gets_events_and_no_more_may_watch_than_there_is_room_for() {
    let page = Page::new().await;
    let watch = || Request::get("/events").header(AUTHORIZATION, format!("Bearer {TOKEN}"));
    let mut watching = Vec::new();
    for _ in 0..200 {
        let answer = page.send(watch(), "").await;
        assert_eq!(
            (answer.status(), &answer.headers()[CONTENT_TYPE]),
            (StatusCode::OK, &"text/event-stream".parse().unwrap())
        );
        watching.push(answer.into_body());
    }
    assert_eq!(page.send(watch(), "").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let first = &mut watching[0];
    let begin = first.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(begin, ": \n\n");
    let event = first.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(event.starts_with(b"id: ") && event.ends_with(b"\n\n"), "{event:?}");
    watching.clear();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(page.send(watch(), "").await.status(), StatusCode::OK, "a place is free again");
    page.tasks.finish(Duration::from_secs(5)).await;
}

/// The variables of a scheme, as red, green and blue.
fn colours(scheme: &str) -> Vec<(String, [f64; 3])> {
    let pairs =
        scheme.split(';').filter_map(|line| line.trim().strip_prefix("--")?.split_once(": #"));
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
    let schemes: Vec<_> =
        css.split(":root {").skip(1).map(|of| of.split('}').next().unwrap()).collect();
    assert_eq!(schemes.len(), 2, "light and dark");
    for scheme in schemes {
        let colours = colours(scheme);
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
