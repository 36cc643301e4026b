//! Access to the page: by token, by a session that began with a token, or by client certificate.

use parking_lot::Mutex;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE};
use proto::host::chain;
use tracing::{info, warn};

use super::Hash;
use super::attempts::Attempts;
pub(crate) use super::attempts::TooMany;
use super::sessions::{LIFE, Sessions};
use super::tokens::{TokenError, Tokens};

/// The cookie's name. Browsers take it over TLS or on this host only, and for this host alone.
const NAME: &str = "__Host-edge-csi";
/// What keeps the cookie from scripts and other sites.
const ATTRIBUTES: &str = "Path=/; HttpOnly; Secure; SameSite=Strict";

/// Why somebody may see the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// By a certificate.
    Certificate,
    /// By a token in this request.
    Token(Hash),
    /// By a session.
    Session(Hash),
}

/// What keeps the page closed.
#[derive(Default)]
pub(crate) struct Guard {
    file: Option<PathBuf>,
    tokens: Mutex<Arc<Tokens>>,
    sessions: Sessions,
    attempts: Attempts,
}

impl Guard {
    /// Lets those in who show a token of this file. Without one, nobody has a token.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub(crate) fn open(file: Option<PathBuf>) -> Result<Self, TokenError> {
        let tokens = file.as_deref().map(Tokens::read).transpose()?.unwrap_or_default();
        Ok(Self { file, tokens: Mutex::new(Arc::new(tokens)), ..Self::default() })
    }

    /// Reads the file again. Sessions of tokens that are gone end.
    ///
    /// # Errors
    /// See [`TokenError`]. The old tokens stay.
    pub(crate) fn reload(&self) -> Result<(), TokenError> {
        let Some(file) = &self.file else { return Ok(()) };
        let tokens = Arc::new(Tokens::read(file)?);
        self.sessions.keep(|token| tokens.has(token));
        let mut current = self.tokens.lock();
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

    /// Why a request is let in; none if it is not.
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

    /// Begins a session with a token; returns its cookie, or none if the token is not good.
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
        info!(address = ?from, "somebody logged in to the page");
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
            Pass::Token(token) => self.tokens().has(&token),
            Pass::Session(session) => self.sessions.goes_on(&session),
        }
    }

    fn tokens(&self) -> Arc<Tokens> {
        self.tokens.lock().clone()
    }

    fn check(&self, from: Option<IpAddr>, shown: &str) -> Result<Option<Hash>, TooMany> {
        let tokens = self.tokens();
        let checked = self.attempts.attempt(from, tokens.find(shown));
        if let Ok(None) = checked {
            warn!(address = ?from, "a wrong token was shown for the page");
        }
        checked
    }

    /// Reads the file again, and logs why it cannot be used. `last` is what was logged before.
    pub(crate) fn refresh(&self, last: &mut Option<String>) {
        let error = self.reload().err().map(|error| chain(&error));
        if let Some(error) = error.as_ref().filter(|error| last.as_ref() != Some(error)) {
            warn!(%error, "the page's tokens have changed and cannot be used; the old ones stay");
        }
        *last = error;
    }
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The session of a request.
fn session(headers: &HeaderMap) -> Option<Hash> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).map(str::trim);
    let value = pairs.find_map(|pair| pair.strip_prefix(NAME)?.strip_prefix('='))?;
    Some(Hash::of(value.as_bytes()))
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
        let hash = Hash::of(TOKEN.as_bytes());
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
        assert!(!guard.goes_on(Pass::Token(Hash::of(TOKEN.as_bytes()))));
        assert!(guard.log_in(peer(1), &other).unwrap().is_some());
        publish(&dir.path().join("tokens"), b"short", 0o600, Existing::Replace).unwrap();
        let mut last = None;
        guard.refresh(&mut last);
        assert!(last.is_some() && guard.log_in(peer(1), &other).unwrap().is_some());
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
}
