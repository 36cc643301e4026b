//! The tokens that let somebody see the page: the lines of a file.
//!
//! Only their SHA-256 is kept, and compared in constant time. A token is long enough that nobody
//! finds it by trying.

use std::io;
use std::path::{Path, PathBuf};

use proto::host::private;
use proto::host::private::PrivateError;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::Hash;

/// The fewest characters of a token.
const SHORTEST: usize = 32;
/// The most characters of a token.
const LONGEST: usize = 512;
/// The most tokens.
const MOST: usize = 64;

/// The tokens.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens(Vec<Hash>);

/// Why the file of the tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// It cannot be read.
    #[error("the tokens of the page, {}, cannot be read (--tokens)", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// Others of this machine can read or change it.
    #[error(
        "the tokens of the page, {path}, have mode {mode:04o}, so others than its owner and group \
         can read or change them; run `chmod o-rwx {path}` and make new tokens",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A line is no token.
    #[error(
        "line {line} of {} is no token of {SHORTEST} to {LONGEST} letters, digits and signs; \
         `openssl rand -hex 32` makes one",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line.
        line: usize,
    },
    /// There is none, or there are too many.
    #[error("{} has {count} tokens; it must have 1 to {MOST}, one a line", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// How many there are.
        count: usize,
    },
}

impl Tokens {
    /// Reads the file. Empty lines, and those that begin with `#`, are left out.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub(crate) fn read(path: &Path) -> Result<Self, TokenError> {
        let cannot = |source| TokenError::Io { path: path.to_owned(), source };
        match private::check(path) {
            Ok(()) => {}
            Err(PrivateError::Io { path, source }) => return Err(TokenError::Io { path, source }),
            Err(PrivateError::Open { path, mode }) => return Err(TokenError::Open { path, mode }),
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(cannot)?);
        let mut tokens = Vec::new();
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if !is_token(text) {
                return Err(TokenError::Line { path: path.to_owned(), line });
            }
            tokens.push(Hash::of(text.as_bytes()));
        }
        match tokens.len() {
            1..=MOST => Ok(Self(tokens)),
            count => Err(TokenError::Count { path: path.to_owned(), count }),
        }
    }

    /// The hash of a token that is shown, if it is one of them.
    pub(crate) fn find(&self, shown: &str) -> Option<Hash> {
        let shown = Hash::of(shown.as_bytes());
        self.has(&shown).then_some(shown)
    }

    /// Whether it is the hash of one of them. All are compared, whichever it is.
    pub(crate) fn has(&self, hash: &Hash) -> bool {
        let same = |one: &Hash| u8::from(bool::from(one.bytes().ct_eq(hash.bytes())));
        self.0.iter().fold(0, |found, one| found | same(one)) == 1
    }
}

fn is_token(text: &str) -> bool {
    (SHORTEST..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proto::host::publish::{Existing, publish};

    use super::*;

    fn read(text: &str, mode: u32) -> Result<Tokens, TokenError> {
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
        let error = |text: &str, mode| read(text, mode).unwrap_err().to_string();
        assert!(error(&token, 0o644).contains("chmod o-rwx"));
        assert!(error("# none\n", 0o600).contains("has 0 tokens"));
        let weak = error(&format!("{token}\nshort\n"), 0o600);
        assert!(weak.contains("line 2") && weak.contains("openssl rand -hex 32"), "{weak}");
        assert!(!weak.contains("short"), "a token is not shown");
        assert!(error(&format!("{token} x"), 0o600).contains("line 1"));
        assert!(error(&format!("{token}\n").repeat(65), 0o600).contains("has 65"));
        assert!(Tokens::read(Path::new("/does/not/exist")).is_err());
    }
}
