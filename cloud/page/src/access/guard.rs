//! Access to the page: by token, by a session that began with a token, or by client certificate.
//!
//! Sessions are in memory only: a restart ends all of them. A session ends after some hours, with
//! its token, or when newer ones need its place.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE};
use parking_lot::{Mutex, RwLock};
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;
use tracing::{info, warn};

pub(crate) use super::tokens::TooMany;
use super::tokens::{FailedLogins, TokenHash, Tokens};

/// How long a session lasts.
const LIFE: Duration = Duration::from_secs(12 * 3600);
/// The most sessions.
const SESSIONS: usize = 256;

/// The cookie's name. Browsers take it over TLS or on this host only, and for this host alone.
const NAME: &str = "__Host-edge-csi";
/// What keeps the cookie from scripts and other sites.
const ATTRIBUTES: &str = "Path=/; HttpOnly; Secure; SameSite=Strict";

/// The far end of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Its address; `None` at a unix socket.
    pub(crate) address: Option<IpAddr>,
    /// Whether it showed a certificate of the CA of clients.
    pub(crate) has_certificate: bool,
    /// Whether TLS agreed on HTTP/2.
    pub(crate) is_http2: bool,
    /// Whether somebody was let in on this connection.
    pub(crate) was_let_in: Arc<AtomicBool>,
}

/// Why somebody may see the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// By a certificate.
    Certificate,
    /// By a token in this request.
    Token(TokenHash),
    /// By a session.
    Session(TokenHash),
}

/// What keeps the page closed.
#[derive(Default)]
pub(crate) struct Guard {
    file: Option<PathBuf>,
    tokens: RwLock<Tokens>,
    sessions: Sessions,
    failures: Mutex<FailedLogins>,
}

impl Guard {
    /// Lets those in who show a token of this file. Without one, nobody has a token.
    ///
    /// # Errors
    /// See [`Tokens::read`].
    pub(crate) fn open(file: Option<PathBuf>) -> anyhow::Result<Self> {
        let tokens = file.as_deref().map(Tokens::read).transpose()?.unwrap_or_default();
        Ok(Self { file, tokens: RwLock::new(tokens), ..Self::default() })
    }

    /// Reads the file again. Sessions of tokens that are gone end.
    ///
    /// # Errors
    /// See [`Tokens::read`]. The old tokens stay.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let tokens = Tokens::read(file)?;
        self.sessions.keep(|token| tokens.has(token));
        let mut current = self.tokens.write();
        if *current != tokens {
            info!("the tokens of the page have changed");
        }
        *current = tokens;
        Ok(())
    }

    /// Whether anybody can log in with a token.
    pub(crate) fn has_tokens(&self) -> bool {
        self.file.is_some()
    }

    /// Why a request is let in; `None` if it is not.
    ///
    /// # Errors
    /// Too many failed before.
    pub(crate) fn pass(
        &self,
        from: Option<IpAddr>,
        is_person: bool,
        headers: &HeaderMap,
    ) -> Result<Option<Pass>, TooMany> {
        if is_person {
            return Ok(Some(Pass::Certificate));
        }
        if let Some(session) = session(headers).filter(|session| self.sessions.goes_on(session)) {
            return Ok(Some(Pass::Session(session)));
        }
        let Some(shown) = bearer(headers) else { return Ok(None) };
        Ok(self.check(from, shown)?.map(Pass::Token))
    }

    /// Begins a session with a token; returns its cookie, or `None` if the token is not good.
    ///
    /// # Errors
    /// Too many failed before.
    pub(crate) fn log_in(
        &self,
        from: Option<IpAddr>,
        shown: &str,
    ) -> Result<Option<String>, TooMany> {
        let Some(token) = self.check(from, shown)? else { return Ok(None) };
        let Some(session) = self.sessions.begin(token) else {
            warn!("no session of the page begins: the system gives no random numbers");
            return Ok(None);
        };
        peer_info!(LogPeer::Caller, address = ?from, "somebody logged in to the page");
        Ok(Some(format!("{NAME}={session}; {ATTRIBUTES}; Max-Age={}", LIFE.as_secs())))
    }

    /// Ends the session of a request; returns a cookie that overwrites its own.
    pub(crate) fn log_out(&self, headers: &HeaderMap) -> String {
        if let Some(session) = session(headers) {
            self.sessions.end(&session);
        }
        format!("{NAME}=; {ATTRIBUTES}; Max-Age=0")
    }

    /// Whether who was let in may go on.
    pub(crate) fn goes_on(&self, pass: Pass) -> bool {
        match pass {
            Pass::Certificate => true,
            Pass::Token(token) => self.tokens.read().has(&token),
            Pass::Session(session) => self.sessions.goes_on(&session),
        }
    }

    fn check(&self, from: Option<IpAddr>, shown: &str) -> Result<Option<TokenHash>, TooMany> {
        let token = self.tokens.read().find(shown);
        if token.is_none() {
            self.failures.lock().add(from)?;
            peer_warn!(LogPeer::Stranger, address = ?from, "a wrong token was shown for the page");
        }
        Ok(token)
    }
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The session of a request.
fn session(headers: &HeaderMap) -> Option<TokenHash> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).map(str::trim);
    let value = pairs.find_map(|pair| pair.strip_prefix(NAME)?.strip_prefix('='))?;
    Some(TokenHash::of(value.as_bytes()))
}

/// All sessions. They are found by the hash of their cookie, so no time tells a cookie.
#[derive(Default)]
struct Sessions(Mutex<HashMap<TokenHash, Session>>);

/// A session.
struct Session {
    /// The token with which it began.
    token: TokenHash,
    begun: Instant,
}

impl Sessions {
    /// Begins a session; returns the value of its cookie. None if the system has no random numbers.
    fn begin(&self, token: TokenHash) -> Option<String> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let cookie = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.begun.elapsed() < LIFE);
        if sessions.len() >= SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.begun);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(TokenHash::of(cookie.as_bytes()), Session { token, begun: Instant::now() });
        Some(cookie)
    }

    /// Whether this session goes on.
    fn goes_on(&self, session: &TokenHash) -> bool {
        let sessions = self.0.lock();
        sessions.get(session).is_some_and(|session| session.begun.elapsed() < LIFE)
    }

    /// Ends a session.
    fn end(&self, session: &TokenHash) {
        self.0.lock().remove(session);
    }

    /// Ends the sessions of tokens that are no longer good.
    fn keep(&self, is_good: impl Fn(&TokenHash) -> bool) {
        self.0.lock().retain(|_, session| is_good(&session.token));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use http::HeaderValue;
    use proto::host::publish::{Existing, publish};
    use tempfile::TempDir;

    use super::*;

    /// The token of [`guard`].
    pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    /// A guard that knows one token.
    pub(crate) fn guard() -> (TempDir, Guard) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        publish(&path, TOKEN.as_bytes(), 0o600, Existing::Keep).unwrap();
        let guard = Guard::open(Some(path)).unwrap();
        (dir, guard)
    }

    fn with(name: http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    fn peer(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    #[tokio::test]
    async fn a_token_a_session_or_a_certificate_lets_in_and_nothing_else() {
        let (_dir, guard) = guard();
        let nothing = HeaderMap::new();
        assert_eq!(guard.pass(peer(1), false, &nothing), Ok(None));
        assert_eq!(guard.pass(peer(1), true, &nothing), Ok(Some(Pass::Certificate)));
        let token = with(AUTHORIZATION, &format!("bearer {TOKEN}"));
        let hash = TokenHash::of(TOKEN.as_bytes());
        assert_eq!(guard.pass(peer(1), false, &token), Ok(Some(Pass::Token(hash))));
        for wrong in ["Bearer x", "Basic eDp5", TOKEN, ""] {
            assert_eq!(
                guard.pass(peer(1), false, &with(AUTHORIZATION, wrong)),
                Ok(None),
                "{wrong}"
            );
        }
        assert_eq!(guard.log_in(peer(1), "wrong"), Ok(None));
        let cookie = guard.log_in(peer(1), TOKEN).unwrap().unwrap();
        for part in ["HttpOnly", "Secure", "SameSite=Strict", "Max-Age=43200", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let (pair, _) = cookie.split_once(';').unwrap();
        let session = with(COOKIE, &format!("other=1; {pair}"));
        let pass = guard.pass(peer(2), false, &session).unwrap().unwrap();
        assert!(matches!(pass, Pass::Session(_)) && guard.goes_on(pass));
        assert!(guard.log_out(&session).contains("Max-Age=0"));
        assert_eq!(guard.pass(peer(2), false, &session), Ok(None));
        assert!(!guard.goes_on(pass));
    }

    #[tokio::test]
    async fn a_session_ends_with_its_token() {
        let (dir, guard) = guard();
        let cookie = guard.log_in(peer(1), TOKEN).unwrap().unwrap();
        let session = with(COOKIE, cookie.split_once(';').unwrap().0);
        guard.reload().unwrap();
        assert!(guard.pass(peer(1), false, &session).unwrap().is_some());
        let other = "f".repeat(40);
        publish(&dir.path().join("tokens"), other.as_bytes(), 0o600, Existing::Replace).unwrap();
        guard.reload().unwrap();
        assert_eq!(guard.pass(peer(1), false, &session), Ok(None));
        assert!(!guard.goes_on(Pass::Token(TokenHash::of(TOKEN.as_bytes()))));
        assert!(guard.log_in(peer(1), &other).unwrap().is_some());
        publish(&dir.path().join("tokens"), b"short", 0o600, Existing::Replace).unwrap();
        assert!(guard.reload().is_err() && guard.log_in(peer(1), &other).unwrap().is_some());
    }

    #[tokio::test]
    async fn wrong_tokens_are_slowed_and_nobody_else_is() {
        let (_dir, guard) = guard();
        let cookie = guard.log_in(peer(1), TOKEN).unwrap().unwrap();
        let session = with(COOKIE, cookie.split_once(';').unwrap().0);
        let outcomes: Vec<_> = (0..30).map(|_| guard.log_in(peer(1), "wrong").is_ok()).collect();
        assert!(outcomes[0] && !outcomes[29]);
        assert!(guard.log_in(peer(1), TOKEN).unwrap().is_some(), "a right one is compared first");
        assert!(guard.pass(peer(1), false, &session).unwrap().is_some());
        assert!(guard.log_in(peer(2), TOKEN).unwrap().is_some());
    }

    fn hash(cookie: &str) -> TokenHash {
        TokenHash::of(cookie.as_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_with_its_time_its_token_or_when_told() {
        let sessions = Sessions::default();
        let [good, bad] = [TokenHash::of(b"good"), TokenHash::of(b"bad")];
        let [one, two, three] = [good, bad, good].map(|token| sessions.begin(token).unwrap());
        assert!(one.len() >= 43 && one != three, "a cookie is random");
        assert!(sessions.goes_on(&hash(&one)) && !sessions.goes_on(&hash("guess")));
        sessions.keep(|token| *token == good);
        assert!(sessions.goes_on(&hash(&one)) && !sessions.goes_on(&hash(&two)));
        sessions.end(&hash(&one));
        assert!(!sessions.goes_on(&hash(&one)) && sessions.goes_on(&hash(&three)));
        tokio::time::advance(LIFE).await;
        assert!(!sessions.goes_on(&hash(&three)));
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_never_more_than_so_many_and_the_oldest_makes_room() {
        let sessions = Sessions::default();
        let first = sessions.begin(TokenHash::of(b"t")).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..SESSIONS {
            sessions.begin(TokenHash::of(b"t")).unwrap();
        }
        assert_eq!(sessions.0.lock().len(), SESSIONS);
        assert!(!sessions.goes_on(&hash(&first)));
    }
}
