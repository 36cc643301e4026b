//! The addresses of the page, and what is made for each. Without a pass there is only the login.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use percent_encoding::percent_decode_str;
use proto::host::tasks::Tasks;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::answer::{self, Answer};
use super::asset;
use super::attempts::TooMany;
use super::guard::{Guard, Pass, Peer};
use super::hub::Hub;
use super::screens::{Asked, Screens};
use super::views::login::login;

/// Pages that watch.
const WATCHERS: usize = 200;
/// Pages that are made at a time; those of claims ask Kubernetes.
const MAKING: usize = 16;
/// How long a page may take to make.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest address, in bytes.
const LONGEST: usize = 8 * 1024;
/// The largest form, in bytes.
const FORM: usize = 4 * 1024;
/// How long a form may take to arrive.
const SENDING: Duration = Duration::from_secs(10);
/// After this time without an event, a sign of life is sent.
const SILENCE: Duration = Duration::from_secs(20);
/// How long a browser may take to read an event.
const READING: Duration = Duration::from_secs(30);
/// Events that wait for a browser.
const QUEUE: usize = 4;

/// Answers requests.
pub(super) struct Router {
    hub: Arc<Hub>,
    guard: Guard,
    screens: Screens,
    watchers: Arc<Semaphore>,
    making: Semaphore,
    tasks: Tasks,
}

impl Router {
    /// The page of what `hub` looks at.
    pub(super) fn new(hub: Arc<Hub>, guard: Guard, tasks: Tasks) -> Self {
        Self {
            screens: Screens::new(hub.clone()),
            hub,
            guard,
            watchers: Arc::new(Semaphore::new(WATCHERS)),
            making: Semaphore::new(MAKING),
            tasks,
        }
    }

    /// Who may see it.
    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Answers a request of a peer.
    pub(super) async fn answer<B>(self: Arc<Self>, peer: Peer, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if parts.uri.path_and_query().is_some_and(|of| of.as_str().len() > LONGEST) {
            return answer::text(StatusCode::URI_TOO_LONG, "the address is too long\n");
        }
        match (&parts.method, path) {
            (&Method::GET, _) if asset::at(path).is_some() => {
                let file = asset::at(path).map(|asset| answer::file(asset.content()));
                file.unwrap_or_else(not_found)
            }
            (&Method::GET, "/login") if self.guard.has_tokens() => {
                answer::page(StatusCode::OK, login(None))
            }
            (&Method::POST, "/login") if self.guard.has_tokens() => {
                self.log_in(peer, &parts.headers, body).await
            }
            (&Method::POST, "/logout") if is_ours(&parts.headers) => {
                answer::redirect("/login", Some(&self.guard.log_out(&parts.headers)))
            }
            (&Method::GET, _) => match self.guard.pass(peer, &parts.headers) {
                Ok(Some(pass)) => self.show(pass, &parts).await,
                Ok(None) => self.refuse(&parts),
                Err(too_many) => too_many_failed(&too_many),
            },
            _ => answer::text(StatusCode::METHOD_NOT_ALLOWED, "the page only shows\n"),
        }
    }

    /// Leads a browser to the login, and tells programs that there is one.
    fn refuse(&self, parts: &Parts) -> Answer {
        let accept = parts.headers.get(http::header::ACCEPT).and_then(|of| of.to_str().ok());
        let is_browser = accept.is_some_and(|accept| accept.contains("text/html"));
        if is_browser && self.guard.has_tokens() {
            return answer::redirect("/login", None);
        }
        let mut refused = answer::text(StatusCode::UNAUTHORIZED, "show a token or a certificate\n");
        let scheme = http::HeaderValue::from_static("Bearer");
        refused.headers_mut().insert(http::header::WWW_AUTHENTICATE, scheme);
        refused
    }

    async fn log_in<B>(&self, peer: Peer, headers: &HeaderMap, body: B) -> Answer
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if !is_ours(headers) {
            return answer::text(StatusCode::FORBIDDEN, "that form is not ours\n");
        }
        let body = timeout(SENDING, Limited::new(body, FORM).collect()).await;
        let Ok(Ok(body)) = body else {
            return answer::text(StatusCode::BAD_REQUEST, "the form broke off or is too large\n");
        };
        let form = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        let token = value(&form, "token").unwrap_or_default();
        match self.guard.log_in(peer, token.trim()) {
            Ok(Some(cookie)) => answer::redirect("/", Some(&cookie)),
            Ok(None) => answer::page(
                StatusCode::UNAUTHORIZED,
                login(Some("That is no token of this page.")),
            ),
            Err(too_many) => too_many_failed(&too_many),
        }
    }

    async fn show(self: &Arc<Self>, pass: Pass, parts: &Parts) -> Answer {
        let query = parts.uri.query().unwrap_or_default();
        let path = parts.uri.path();
        if path == "/events" {
            return self.watch(pass, parts, query);
        }
        let Ok(_turn) = self.making.try_acquire() else {
            return answer::later(busy(), 1);
        };
        let segments: Option<Vec<_>> = path.split('/').skip(1).map(decoded).collect();
        let Some(segments) = segments else { return not_found() };
        let begun = Instant::now();
        let asked = Asked {
            segments: segments.iter().map(String::as_str).collect(),
            value: &|key| value(query, key),
            has_session: matches!(pass, Pass::Session(_)),
        };
        match timeout(PATIENCE, self.screens.show(&asked)).await {
            Ok(shown) => answer::timed(shown, begun.elapsed()),
            Err(_) => answer::later(busy(), 5),
        }
    }

    /// Sends events until the browser, the session or csi-cloud ends.
    fn watch(self: &Arc<Self>, pass: Pass, parts: &Parts, query: &str) -> Answer {
        let Ok(place) = self.watchers.clone().try_acquire_owned() else {
            return answer::later(
                answer::text(StatusCode::SERVICE_UNAVAILABLE, "too many watch\n"),
                30,
            );
        };
        let last = parts.headers.get("last-event-id").and_then(|id| id.to_str().ok());
        let last = last.map(str::to_owned).or_else(|| value(query, "after")).unwrap_or_default();
        let (send, receive) = mpsc::channel(QUEUE);
        let router = self.clone();
        self.tasks.spawn_until_stop("watcher", async move {
            router.send_events(pass, &last, &send, place).await;
        });
        answer::events(receive)
    }

    async fn send_events(
        &self,
        pass: Pass,
        last: &str,
        send: &mpsc::Sender<Bytes>,
        _place: OwnedSemaphorePermit,
    ) {
        let mut watching = self.hub.watch();
        let mut number = revision(last, self.hub.epoch());
        // Something at once, so that a proxy and the browser know that it has begun.
        if !sent(send, ": \n\n".into()).await {
            return;
        }
        loop {
            let moment = watching.now.borrow_and_update().clone();
            let events = number.and_then(|number| moment.feed.after(number));
            let events = events.unwrap_or_else(|| vec![moment.feed.anew(self.hub.epoch())]);
            number = Some(moment.feed.last());
            for event in events {
                if !sent(send, event).await {
                    return;
                }
            }
            tokio::select! {
                biased;
                () = send.closed() => return,
                changed = watching.now.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(SILENCE) => {
                    if !self.guard.goes_on(pass) || !sent(send, ": \n\n".into()).await {
                        return;
                    }
                }
            }
        }
    }
}

/// Sends an event; false if nobody reads it in time.
async fn sent(send: &mpsc::Sender<Bytes>, event: Bytes) -> bool {
    matches!(timeout(READING, send.send(event)).await, Ok(Ok(())))
}

/// The number in `EPOCH-NUMBER`; none if it is of another csi-cloud.
fn revision(text: &str, epoch: &str) -> Option<u64> {
    text.strip_prefix(epoch)?.strip_prefix('-')?.parse().ok()
}

/// Whether a form is from a page of ours. Old browsers do not say; the cookie is theirs alone.
fn is_ours(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

/// The decoded value of a key in a query or form.
fn value(query: &str, key: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == key)?;
    decoded(&value.replace('+', " "))
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

fn not_found() -> Answer {
    answer::text(StatusCode::NOT_FOUND, "there is no such page\n")
}

fn busy() -> Answer {
    answer::text(StatusCode::SERVICE_UNAVAILABLE, "csi-cloud is busy; try again\n")
}

fn too_many_failed(too_many: &TooMany) -> Answer {
    let why = "Too many logins failed. Wait a minute.";
    let refused = answer::page(StatusCode::TOO_MANY_REQUESTS, login(Some(why)));
    answer::later(refused, too_many.wait.as_secs())
}
