//! The addresses of the page. Without a pass there is only the login.
//! Every answer has the headers that keep a browser from running anything foreign.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Form, FromRequest, Query, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, timeout};

use crate::access::guard::{Pass, TooMany};
use crate::asset;
use crate::connection::Peer;
use crate::page::{Page, html};
use crate::screens;
use crate::views::login::login;

/// The time limit for making a page.
const MAKING_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest address, in bytes.
const ADDRESS_BYTES_MAX: usize = 8 * 1024;
/// The largest form, in bytes.
const FORM_BYTES_MAX: usize = 4 * 1024;
/// The time limit for a form to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// After this time without an event, a sign of life is sent.
const SILENCE: Duration = Duration::from_secs(20);
/// The time limit for a browser to read an event.
const READING: Duration = Duration::from_secs(30);
/// The time for which a watcher waits for csi-cloud.
const AWAY: Duration = Duration::from_secs(25);
/// Events that wait for a browser.
const QUEUE: usize = 4;
/// Nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
/// Files whose address changes with their content.
const IMMUTABLE: &str = "private, max-age=31536000, immutable";

/// The routes. Requests have their [`Peer`] as an extension.
pub(crate) fn router(page: Arc<Page>) -> Router {
    let shown = screens::routes()
        .route_layer(from_fn_with_state(page.clone(), make))
        .route("/events", get(watch))
        .fallback(screens::missing)
        .layer(from_fn_with_state(page.clone(), let_in));
    Router::new()
        .route("/login", get(login_form).post(log_in))
        .route("/logout", post(log_out))
        .route("/page.css", get(file))
        .route("/page.js", get(file))
        .route("/icon.svg", get(file))
        .fallback_service(shown.with_state(page.clone()))
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(axum::middleware::from_fn(guarded))
        .with_state(page)
}

/// Refuses requests that no page can answer, and gives every answer what it carries so that a
/// browser runs and shows nothing of others.
async fn guarded(request: Request, next: Next) -> Response {
    let is_form = matches!(request.uri().path(), "/login" | "/logout");
    let length = request.uri().path_and_query().map_or(0, |of| of.as_str().len());
    let mut answer = if length > ADDRESS_BYTES_MAX {
        text(StatusCode::URI_TOO_LONG, "the address is too long\n")
    } else if request.method() != Method::GET && !(is_form && request.method() == Method::POST) {
        text(StatusCode::METHOD_NOT_ALLOWED, "the page only shows\n")
    } else {
        next.run(request).await
    };
    let headers = answer.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        // Not `no-referrer`: a form of ours would have the origin `null`.
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Lets nobody see anything without a pass.
async fn let_in(
    State(page): State<Arc<Page>>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    match page.pass(&peer, request.headers()) {
        Ok(Some(pass)) => {
            peer.was_let_in.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(pass);
            next.run(request).await
        }
        Ok(None) => refuse(&page, request.headers()),
        Err(too_many) => too_many_failed(&too_many),
    }
}

/// Leads a browser to the login, and tells programs that there is one.
fn refuse(page: &Page, headers: &HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|of| of.to_str().ok());
    let is_browser = accept.is_some_and(|accept| accept.contains("text/html"));
    if is_browser && page.guard.has_tokens() {
        return Redirect::to("/login").into_response();
    }
    let scheme = [(WWW_AUTHENTICATE, "Bearer")];
    (scheme, text(StatusCode::UNAUTHORIZED, "show a token or a certificate\n")).into_response()
}

/// Makes a page, a bounded number at a time, and says how long it took.
async fn make(State(page): State<Arc<Page>>, request: Request, next: Next) -> Response {
    let Ok(_turn) = page.making.try_acquire() else { return busy(1) };
    let begun = Instant::now();
    let Ok(mut made) = timeout(MAKING_TIME_MAX, next.run(request)).await else { return busy(5) };
    let millis = begun.elapsed().as_secs_f64() * 1000.0;
    if let Ok(value) = HeaderValue::from_str(&format!("render;dur={millis:.1}")) {
        made.headers_mut().insert(HeaderName::from_static("server-timing"), value);
    }
    made
}

async fn file(uri: Uri) -> Response {
    let Some(asset) = asset::at(uri.path()) else { return StatusCode::NOT_FOUND.into_response() };
    let (content_type, content) = asset.content();
    ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, IMMUTABLE)], content).into_response()
}

/// The form of the login.
#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    token: String,
}

async fn login_form(State(page): State<Arc<Page>>) -> Response {
    if !page.guard.has_tokens() {
        return refuse(&page, &HeaderMap::new());
    }
    html(StatusCode::OK, login(None))
}

async fn log_in(
    State(page): State<Arc<Page>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    if !page.guard.has_tokens() {
        return text(StatusCode::METHOD_NOT_ALLOWED, "the page only shows\n");
    }
    if !is_ours(request.headers(), request.uri()) {
        return text(StatusCode::FORBIDDEN, "that form is not ours\n");
    }
    let arriving = timeout(ARRIVAL, Form::<Login>::from_request(request, &()));
    let Ok(Ok(Form(form))) = arriving.await else {
        return text(StatusCode::BAD_REQUEST, "the form broke off or is too large\n");
    };
    match page.guard.log_in(peer.address, form.token.trim()) {
        Ok(Some(cookie)) => ([(SET_COOKIE, cookie)], Redirect::to("/")).into_response(),
        Ok(None) => html(StatusCode::UNAUTHORIZED, login(Some("That is no token of this page."))),
        Err(too_many) => too_many_failed(&too_many),
    }
}

async fn log_out(State(page): State<Arc<Page>>, request: Request) -> Response {
    if !is_ours(request.headers(), request.uri()) {
        return text(StatusCode::FORBIDDEN, "that form is not ours\n");
    }
    let cookie = page.guard.log_out(request.headers());
    ([(SET_COOKIE, cookie)], Redirect::to("/login")).into_response()
}

/// Whether a form is from a page of ours, as the browser says by either header. Old browsers say
/// neither; the cookie is theirs alone.
fn is_ours(headers: &HeaderMap, uri: &Uri) -> bool {
    let site = header(headers, &HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return false;
    }
    let Some(origin) = header(headers, &ORIGIN) else { return true };
    let Some((_, named)) = origin.split_once("://") else { return false };
    match uri.authority() {
        Some(authority) => named == authority.as_str(),
        None => header(headers, &HOST) == Some(named),
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or(""))
}

/// What a watcher has seen.
#[derive(Deserialize)]
struct Seen {
    #[serde(default)]
    after: String,
}

/// Sends events until the browser, its pass or csi-page ends.
async fn watch(
    State(page): State<Arc<Page>>,
    Extension(pass): Extension<Pass>,
    Query(seen): Query<Seen>,
    headers: HeaderMap,
) -> Response {
    let Ok(place) = page.watchers.clone().try_acquire_owned() else {
        let full = text(StatusCode::SERVICE_UNAVAILABLE, "too many watch\n");
        return ([(RETRY_AFTER, "30")], full).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let number = revision(last.unwrap_or(&seen.after), page.hub.epoch());
    let (send, receive) = mpsc::channel(QUEUE);
    let tasks = page.tasks.clone();
    tasks.spawn_until_stop("watcher", async move {
        send_events(&page, pass, number, &send, place).await;
    });
    let events = futures_util::stream::unfold(receive, |mut receive| async move {
        Some((Ok::<Bytes, std::convert::Infallible>(receive.recv().await?), receive))
    });
    let mut answer = Response::new(Body::from_stream(events));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy that collects events would show them late.
    let name = HeaderName::from_static("x-accel-buffering");
    headers.insert(name, HeaderValue::from_static("no"));
    answer
}

async fn send_events(
    page: &Page,
    pass: Pass,
    mut number: Option<u64>,
    send: &mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    let mut watching = page.hub.watch();
    // Something at once, so that a proxy and the browser know that it has begun.
    if !sent(send, Bytes::from_static(b": \n\n")).await {
        return;
    }
    if timeout(AWAY, watching.now.wait_for(|now| now.is_live)).await.is_err() {
        return;
    }
    loop {
        let now = watching.now.borrow_and_update().clone();
        // A browser that is cut off shows that, and tries again.
        if !now.is_live || !page.guard.goes_on(pass) {
            return;
        }
        let feed = &now.moment.feed;
        let events = number.and_then(|number| feed.after(number));
        let events = events.unwrap_or_else(|| vec![feed.anew(page.hub.epoch())]);
        number = Some(feed.last());
        for event in events {
            if !sent(send, event).await {
                return;
            }
        }
        let next = async {
            loop {
                watching.now.changed().await?;
                let now = watching.now.borrow();
                if !now.is_live || Some(now.moment.feed.last()) != number {
                    return Ok::<_, tokio::sync::watch::error::RecvError>(());
                }
            }
        };
        let waited = tokio::select! {
            biased;
            () = send.closed() => return,
            waited = timeout(SILENCE, next) => waited,
        };
        match waited {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                if !sent(send, Bytes::from_static(b": \n\n")).await {
                    return;
                }
            }
        }
    }
}

/// Sends an event; false if nobody reads it in time.
async fn sent(send: &mpsc::Sender<Bytes>, event: Bytes) -> bool {
    matches!(timeout(READING, send.send(event)).await, Ok(Ok(())))
}

/// The number in `EPOCH-NUMBER`; `None` if it is of another csi-page.
fn revision(text: &str, epoch: &str) -> Option<u64> {
    text.strip_prefix(epoch)?.strip_prefix('-')?.parse().ok()
}

/// An answer with a line.
fn text(status: StatusCode, line: &'static str) -> Response {
    (status, line).into_response()
}

fn busy(seconds: u64) -> Response {
    let busy = text(StatusCode::SERVICE_UNAVAILABLE, "csi-page is busy; try again\n");
    ([(RETRY_AFTER, seconds.to_string())], busy).into_response()
}

fn too_many_failed(too_many: &TooMany) -> Response {
    let shown = login(Some("Too many wrong tokens. Wait a minute, or use a good one."));
    let seconds = too_many.wait.as_secs().max(1).to_string();
    ([(RETRY_AFTER, seconds)], html(StatusCode::TOO_MANY_REQUESTS, shown)).into_response()
}
