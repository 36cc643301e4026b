//! The addresses of the page. Without a pass there is only the login.
//! Every answer has the headers that keep a browser from running anything foreign.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Form, FromRequest, Query, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};
use tower_http::csrf::CsrfLayer;

use crate::access::guard::{Pass, Peer, TooMany};
use crate::screens;
use crate::state::PageState;
use crate::views::frame::login;

/// The longest address, in bytes.
const ADDRESS_BYTES_MAX: usize = 8 * 1024;
/// The largest form, in bytes.
const FORM_BYTES_MAX: usize = 4 * 1024;
/// The time limit for a form to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// The time between two signs of life for a watcher.
const SILENCE: Duration = Duration::from_secs(20);
/// The time limit for a browser to read an event.
const READING: Duration = Duration::from_secs(30);
/// The time for which a watcher waits for csi-cloud.
const AWAY: Duration = Duration::from_secs(25);
/// Events that wait for a browser.
const QUEUE: usize = 4;
/// An event that a browser passes over.
const SIGN_OF_LIFE: Bytes = Bytes::from_static(b": \n\n");
/// Nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
/// Files whose address changes with their content.
const IMMUTABLE: &str = "private, max-age=31536000, immutable";

/// The routes. Requests have their [`Peer`] as an extension.
pub(crate) fn router(page: Arc<PageState>) -> Router {
    let shown = screens::routes(page.clone())
        .route("/events", get(watch))
        .layer(from_fn_with_state(page.clone(), let_in));
    let mut open = Router::new();
    if page.guard.has_tokens() {
        open = open
            .route("/login", get(async || login(None)).post(log_in))
            .route("/logout", post(log_out))
            .route_layer(CsrfLayer::new());
    }
    open.route("/page.css", get(file("text/css; charset=utf-8", include_str!("page.css"))))
        .route("/page.js", get(file("text/javascript; charset=utf-8", include_str!("page.js"))))
        .route("/icon.svg", get(file("image/svg+xml", include_str!("icon.svg"))))
        .fallback_service(shown.with_state(page.clone()))
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(from_fn(guarded))
        .with_state(page)
}

fn file(content_type: &'static str, content: &'static str) -> impl IntoResponse + Clone {
    ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, IMMUTABLE)], content)
}

/// Refuses requests that no page can answer, and gives every answer what it carries so that a
/// browser runs and shows nothing of others.
async fn guarded(request: Request, next: Next) -> Response {
    let is_form = matches!(request.uri().path(), "/login" | "/logout");
    let length = request.uri().path_and_query().map_or(0, |of| of.as_str().len());
    let mut answer = if length > ADDRESS_BYTES_MAX {
        (StatusCode::URI_TOO_LONG, "the address is too long\n").into_response()
    } else if request.method() != Method::GET && !(is_form && request.method() == Method::POST) {
        (StatusCode::METHOD_NOT_ALLOWED, "the page only shows\n").into_response()
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
    State(page): State<Arc<PageState>>,
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
        Err(too_many) => too_many.into_response(),
    }
}

/// Leads a browser to the login, and tells programs that there is one.
fn refuse(page: &PageState, headers: &HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|of| of.to_str().ok());
    let is_browser = accept.is_some_and(|accept| accept.contains("text/html"));
    if is_browser && page.guard.has_tokens() {
        return Redirect::to("/login").into_response();
    }
    let scheme = [(WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, scheme, "show a token or a certificate\n").into_response()
}

impl IntoResponse for TooMany {
    fn into_response(self) -> Response {
        let shown = login(Some("Too many wrong tokens. Wait a minute, or use a good one."));
        let seconds = self.wait.as_secs().max(1).to_string();
        (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds)], shown).into_response()
    }
}

/// The form of the login.
#[derive(Deserialize)]
struct LoginForm {
    #[serde(default)]
    token: String,
}

async fn log_in(
    State(page): State<Arc<PageState>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, TooMany> {
    let arriving = timeout(ARRIVAL, Form::<LoginForm>::from_request(request, &()));
    let Ok(Ok(Form(form))) = arriving.await else {
        let text = "the form broke off or is too large\n";
        return Ok((StatusCode::BAD_REQUEST, text).into_response());
    };
    Ok(match page.guard.log_in(peer.address, form.token.trim())? {
        Some(cookie) => ([(SET_COOKIE, cookie)], Redirect::to("/")).into_response(),
        None => {
            let shown = login(Some("That is no token of this page."));
            (StatusCode::UNAUTHORIZED, shown).into_response()
        }
    })
}

async fn log_out(State(page): State<Arc<PageState>>, headers: HeaderMap) -> impl IntoResponse {
    ([(SET_COOKIE, page.guard.log_out(&headers))], Redirect::to("/login"))
}

/// What a watcher has seen.
#[derive(Deserialize)]
struct WatchQuery {
    #[serde(default)]
    after: String,
}

/// Sends events until the browser, its pass or csi-page ends.
async fn watch(
    State(page): State<Arc<PageState>>,
    Extension(pass): Extension<Pass>,
    Query(seen): Query<WatchQuery>,
    headers: HeaderMap,
) -> Response {
    let Ok(place) = page.watchers.clone().try_acquire_owned() else {
        let full = (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "30")], "too many watch\n");
        return full.into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let number = revision(last.unwrap_or(&seen.after), &page.hub.epoch);
    let (send, mut receive) = mpsc::channel(QUEUE);
    let tasks = page.tasks.clone();
    tasks.spawn_until_stop("watcher", async move {
        // The end of a watcher is seen by its browser.
        let _ = send_events(&page, pass, number, &send).await;
        drop(place);
    });
    let events = futures_util::stream::poll_fn(move |context| {
        receive.poll_recv(context).map(|event| event.map(Ok::<_, std::convert::Infallible>))
    });
    let content = (CONTENT_TYPE, "text/event-stream");
    // A proxy that collects events would show them late.
    let at_once = (HeaderName::from_static("x-accel-buffering"), "no");
    ([content, at_once], Body::from_stream(events)).into_response()
}

/// Returns `None` when the watcher ends. A browser that is cut off shows that, and tries again.
async fn send_events(
    page: &PageState,
    pass: Pass,
    mut number: Option<u64>,
    send: &mpsc::Sender<Bytes>,
) -> Option<()> {
    let mut watching = page.hub.watch();
    let mut signs = interval(SILENCE);
    // Something at once, so that a proxy and the browser know that it has begun.
    signs.tick().await;
    sent(send, SIGN_OF_LIFE).await?;
    timeout(AWAY, watching.wait_for(|now| now.is_live)).await.ok()?.ok()?;
    loop {
        let now = watching.borrow_and_update().clone();
        if !now.is_live || !page.guard.goes_on(pass) {
            return None;
        }
        let feed = &now.moment.feed;
        for event in feed.after(number, &page.hub.epoch) {
            sent(send, event).await?;
        }
        number = Some(feed.last());
        tokio::select! {
            biased;
            () = send.closed() => return None,
            changed = watching.changed() => changed.ok()?,
            _ = signs.tick() => sent(send, SIGN_OF_LIFE).await?,
        }
    }
}

/// Sends an event; `None` if nobody reads it in time.
async fn sent(send: &mpsc::Sender<Bytes>, event: Bytes) -> Option<()> {
    timeout(READING, send.send(event)).await.ok()?.ok()
}

/// The number in `EPOCH-NUMBER`; `None` if it is of another csi-page.
fn revision(text: &str, epoch: &str) -> Option<u64> {
    text.strip_prefix(epoch)?.strip_prefix('-')?.parse().ok()
}
