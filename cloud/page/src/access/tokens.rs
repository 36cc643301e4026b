//! The tokens that let somebody see the page: the lines of a file.
//!
//! Only their SHA-256 is kept, and compared in constant time. A token is long enough that nobody
//! finds it by trying: the limit of wrong ones keeps those who try from the log. A token is
//! compared first, so wrong ones keep nobody out, behind the same address either.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use proto::host::limit::{Window, host_network};
use proto::host::private;
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// The fewest characters of a token.
const SHORTEST: usize = 32;
/// The most characters of a token.
const LONGEST: usize = 512;
/// The most tokens.
const MOST: usize = 64;

/// The time for which failures count.
const WINDOW: Duration = Duration::from_secs(60);
/// Failures of one address in that time.
const EACH: usize = 10;
/// Failures of all addresses in that time.
const ALL: usize = 200;
/// The addresses that are kept; those whose failures no longer count make room.
const SOURCES: usize = 1024;

/// The tokens.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens(Vec<TokenHash>);

/// The SHA-256 of a token, or of the cookie of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(hash)
    }
}

impl Tokens {
    /// Reads the file. Empty lines, and those that begin with `#`, are left out.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, or its tokens are weak, too many or none; the
    /// text says which.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = path.display();
        private::check(path).context("the tokens of the page (--tokens) cannot be used")?;
        let text = Zeroizing::new(std::fs::read_to_string(path).with_context(|| {
            format!("the tokens of the page, {file}, cannot be read (--tokens)")
        })?);
        let mut tokens = Vec::new();
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if !is_token(text) {
                bail!(
                    "line {line} of {file} is no token of {SHORTEST} to {LONGEST} letters, digits \
                     and signs; `openssl rand -hex 32` makes one"
                );
            }
            tokens.push(TokenHash::of(text.as_bytes()));
        }
        match tokens.len() {
            1..=MOST => Ok(Self(tokens)),
            count => bail!("{file} has {count} tokens; it must have 1 to {MOST}, one a line"),
        }
    }

    /// The hash of a token that is shown, if it is one of them.
    pub(crate) fn find(&self, shown: &str) -> Option<TokenHash> {
        let shown = TokenHash::of(shown.as_bytes());
        self.has(&shown).then_some(shown)
    }

    /// Whether it is the hash of one of them. All are compared, whichever it is.
    pub(crate) fn has(&self, hash: &TokenHash) -> bool {
        let same = |one: &TokenHash| u8::from(bool::from(one.0.ct_eq(&hash.0)));
        self.0.iter().fold(0, |found, one| found | same(one)) == 1
    }
}

fn is_token(text: &str) -> bool {
    (SHORTEST..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The failed logins of the last minute.
#[derive(Default)]
pub(crate) struct FailedLogins {
    all: Window,
    each: HashMap<Option<IpAddr>, Window>,
}

/// Too many logins failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany {
    /// How long it is to be waited.
    pub(crate) wait: Duration,
}

impl FailedLogins {
    /// Notes a wrong token from an address; `None` for one of this host.
    ///
    /// # Errors
    /// So were too many before.
    pub(crate) fn add(&mut self, from: Option<IpAddr>) -> Result<(), TooMany> {
        let now = Instant::now();
        // No more than so many of all count, so this makes room.
        if self.each.len() >= SOURCES {
            self.each.retain(|_, count| count.is_current(WINDOW, now));
        }
        let each = self.each.entry(from.map(host_network)).or_default();
        if let Some(wait) = self.all.wait(ALL, WINDOW, now).max(each.wait(EACH, WINDOW, now)) {
            return Err(TooMany { wait });
        }
        self.all.add(WINDOW, now);
        each.add(WINDOW, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proto::host::publish::{Existing, publish};

    use super::*;

    fn read(text: &str, mode: u32) -> anyhow::Result<Tokens> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        publish(&path, text.as_bytes(), mode, Existing::Keep).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Tokens::read(&path)
    }

    #[test]
    fn only_whole_lines_of_the_file_are_tokens() {
        let one = "a".repeat(32);
        let other = "b".repeat(64);
        let tokens = read(&format!("# of the shift\n\n  {one}\n{other}\r\n"), 0o600).unwrap();
        assert!(tokens.find(&one).is_some() && tokens.find(&other).is_some());
        for wrong in ["", "# of the shift", &one[1..], &format!("{one}a"), &format!(" {one}")] {
            assert!(tokens.find(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_that_is_open_empty_or_weak_is_refused_with_what_to_do() {
        let token = "a".repeat(32);
        let error = |text: &str, mode| format!("{:#}", read(text, mode).unwrap_err());
        assert!(error(&token, 0o644).contains("chmod o-rwx"));
        assert!(error("# none\n", 0o600).contains("has 0 tokens"));
        let weak = error(&format!("{token}\nshort\n"), 0o600);
        assert!(weak.contains("line 2") && weak.contains("openssl rand -hex 32"), "{weak}");
        assert!(!weak.contains("short"), "a token is not shown");
        assert!(error(&format!("{token} x"), 0o600).contains("line 1"));
        assert!(error(&format!("{token}\n").repeat(65), 0o600).contains("has 65"));
        assert!(Tokens::read(Path::new("/does/not/exist")).is_err());
    }

    fn from(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[tokio::test(start_paused = true)]
    async fn after_some_wrong_tokens_an_address_waits_with_wrong_ones() {
        let mut failures = FailedLogins::default();
        for _ in 0..EACH {
            assert_eq!(failures.add(from(1)), Ok(()));
        }
        assert_eq!(failures.add(from(1)), Err(TooMany { wait: WINDOW }));
        assert_eq!(failures.add(from(2)), Ok(()));
        tokio::time::advance(WINDOW).await;
        assert_eq!(failures.add(from(1)), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_together_are_limited_and_bounded() {
        let mut failures = FailedLogins::default();
        for last in 0..ALL {
            assert_eq!(failures.add(from(u8::try_from(last).unwrap())), Ok(()));
        }
        assert!(failures.add(from(255)).is_err());
        assert!(failures.add(None).is_err());
        for address in 0..4 * u32::try_from(SOURCES).unwrap() {
            assert!(failures.add(Some(IpAddr::from(address.to_be_bytes()))).is_err());
            assert!(failures.each.len() <= SOURCES);
        }
    }
}
