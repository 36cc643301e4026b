//! A backend that counts and times the commits of another.

use std::time::Duration;

use tokio::time::Instant;

use super::backend::{Backend, StoreError};
use crate::state::record::Change;

/// The metrics that commits report to.
pub trait CommitMetrics: Send + Sync {
    /// Records a commit with this number of changes.
    fn ended(&self, changes: usize, took: Duration, is_durable: bool);
}

/// A backend with measured commits.
pub struct Measured {
    backend: Box<dyn Backend>,
    commits: Box<dyn CommitMetrics>,
}

impl Measured {
    /// Measures the commits of this backend.
    pub fn new(backend: Box<dyn Backend>, commits: Box<dyn CommitMetrics>) -> Self {
        Self { backend, commits }
    }
}

impl Backend for Measured {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        self.backend.load(each)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let begun = Instant::now();
        let outcome = self.backend.commit(changes);
        self.commits.ended(changes.len(), begun.elapsed(), outcome.is_ok());
        outcome
    }

    fn try_again(&mut self) -> Option<std::io::Result<()>> {
        self.backend.try_again()
    }

    fn waits(&self) -> bool {
        self.backend.waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;

    /// Accepts one change per commit.
    struct Full;

    impl Backend for Full {
        fn load(&mut self, _: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
            if changes.len() > 1 { Err(StoreError::Closed) } else { Ok(()) }
        }
    }

    #[test]
    fn commits_and_failures_are_counted() {
        let metrics = Metrics::default();
        let mut store = Measured::new(Box::new(Full), Box::new(metrics.commits()));
        let change = Change::Node("n1".parse().unwrap(), None);
        store.commit(std::slice::from_ref(&change)).unwrap();
        let full = store.commit(&[change.clone(), change]);
        assert!(matches!(full, Err(StoreError::Closed)));
        let (counted, failed) = metrics.commits().counts();
        assert_eq!((counted, failed), (2, 1));
    }
}
