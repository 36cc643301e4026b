//! Tracks the pages of a list that is being read, and stops a list that never ends.
//!
//! It stops by the size of the list, by the number of pages, or if the page tokens go in a circle.

use std::collections::HashSet;

use super::kind::{ListKind, Page};
use crate::state::quotas::{OverQuota, Quota, Quotas};

/// The pages that were read so far.
#[derive(Default)]
pub(super) struct Progress {
    bytes: usize,
    /// The tokens of the next pages; their sizes count with the answers.
    tokens: HashSet<String>,
}

/// The reason to stop reading a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Endless {
    /// The answers are larger than the quota.
    Over(OverQuota),
    /// A page has the token of an earlier one.
    Circle,
}

impl Progress {
    /// Notes a page.
    ///
    /// # Errors
    /// The list is not to be read on.
    pub(super) fn note(
        &mut self,
        kind: ListKind,
        page: &Page,
        quotas: &Quotas,
    ) -> Result<(), Endless> {
        self.bytes = self.bytes.saturating_add(page.bytes);
        let what = || format!("bytes in the answers to {}", kind.method().name());
        quotas.check(Quota::ListBytes, self.bytes, what).map_err(Endless::Over)?;
        if page.next.is_empty() || self.tokens.insert(page.next.clone()) {
            Ok(())
        } else {
            Err(Endless::Circle)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(bytes: usize, next: &str) -> Page {
        Page { entries: Vec::new(), next: next.to_owned(), bytes }
    }

    fn note(progress: &mut Progress, page: &Page) -> Result<(), Endless> {
        let quotas = Quotas { list_bytes: 100, ..Quotas::default() };
        progress.note(ListKind::Volumes, page, &quotas)
    }

    #[test]
    fn tokens_in_a_circle_end_a_list() {
        let mut progress = Progress::default();
        for next in ["a", "b", "c"] {
            assert_eq!(note(&mut progress, &page(1, next)), Ok(()));
        }
        assert_eq!(note(&mut progress, &page(1, "a")), Err(Endless::Circle));
        assert_eq!(note(&mut Progress::default(), &page(1, "")), Ok(()), "the last page");
    }

    #[test]
    fn a_list_is_ended_at_its_size_whatever_its_pages_say() {
        let mut progress = Progress::default();
        assert_eq!(note(&mut progress, &page(60, "a")), Ok(()));
        let Err(Endless::Over(over)) = note(&mut progress, &page(41, "b")) else { panic!("read") };
        assert_eq!((over.quota, over.found, over.most), (Quota::ListBytes, 101, 100));
        assert_eq!(over.what, "bytes in the answers to ListVolumes");
    }
}
