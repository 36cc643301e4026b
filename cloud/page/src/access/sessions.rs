//! Who is logged in, by the cookie of the browser. In memory only: a restart ends all of them.
//!
//! A session ends after some hours, with its token, or when newer ones need its place.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;

use super::Hash;

/// How long a session lasts.
pub(crate) const LIFE: Duration = Duration::from_secs(12 * 3600);
/// The most sessions.
const MOST: usize = 256;

/// All sessions. They are found by the hash of the cookie, so no time tells a cookie.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<Hash, Session>>);

/// A session.
struct Session {
    /// The token with which it began.
    token: Hash,
    begun: Instant,
}

impl Sessions {
    /// Begins a session; returns the value of its cookie. None if the system has no random numbers.
    pub(crate) fn begin(&self, token: Hash) -> Option<String> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let cookie = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.begun.elapsed() < LIFE);
        if sessions.len() >= MOST {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.begun);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(Hash::of(cookie.as_bytes()), Session { token, begun: Instant::now() });
        Some(cookie)
    }

    /// Whether this session goes on.
    pub(crate) fn goes_on(&self, session: &Hash) -> bool {
        let sessions = self.lock();
        sessions.get(session).is_some_and(|session| session.begun.elapsed() < LIFE)
    }

    /// Ends a session.
    pub(crate) fn end(&self, session: &Hash) {
        self.lock().remove(session);
    }

    /// Ends the sessions of tokens that are no longer good.
    pub(crate) fn keep(&self, is_good: impl Fn(&Hash) -> bool) {
        self.lock().retain(|_, session| is_good(&session.token));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Hash, Session>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(cookie: &str) -> Hash {
        Hash::of(cookie.as_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_with_its_time_its_token_or_when_told() {
        let sessions = Sessions::default();
        let [good, bad] = [Hash::of(b"good"), Hash::of(b"bad")];
        let [one, two, three] = [good, bad, good].map(|token| sessions.begin(token).unwrap());
        assert!(one.len() >= 43 && one != three, "a cookie is random");
        assert!(sessions.goes_on(&session(&one)) && !sessions.goes_on(&session("guess")));
        sessions.keep(|token| *token == good);
        assert!(sessions.goes_on(&session(&one)) && !sessions.goes_on(&session(&two)));
        sessions.end(&session(&one));
        assert!(!sessions.goes_on(&session(&one)) && sessions.goes_on(&session(&three)));
        tokio::time::advance(LIFE).await;
        assert!(!sessions.goes_on(&session(&three)));
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_never_more_than_so_many_and_the_oldest_makes_room() {
        let sessions = Sessions::default();
        let first = sessions.begin(Hash::of(b"t")).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..MOST {
            sessions.begin(Hash::of(b"t")).unwrap();
        }
        assert_eq!(sessions.lock().len(), MOST);
        assert!(!sessions.goes_on(&session(&first)));
    }
}
