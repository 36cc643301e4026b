//! Asks the cloud for leases of volumes, by control messages on the link in use.
//!
//! A request goes out on that link alone, and again on the link that replaces it, so the cloud
//! hears requests in order. It uses no other room.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proto::control::lease::{LeaseAction, Outcome, Request};
use proto::names::DriverName;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// The time for which a new csi-edge waits for its first link. Its leases may be older than an
/// operator's decision.
const FIRST: Duration = Duration::from_secs(10);
/// Requests that wait until the link takes them.
const QUEUE: usize = 64;

/// A request on its way to the cloud.
pub struct LeaseRequest {
    /// The request to the cloud.
    pub request: Request,
    /// The receiver of the answer.
    pub answer: oneshot::Sender<Outcome>,
}

#[derive(Clone, Default)]
enum To {
    /// There is no link.
    #[default]
    Nobody,
    /// Requests go out on this link. No other link has its number.
    Link(u64, mpsc::Sender<LeaseRequest>),
}

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No link is up.
    #[error(
        "there is no link to csi-cloud, which alone knows whether another node has it; it can be \
         had when csi-edge has linked"
    )]
    NoLink,
    /// The cloud did not answer in time.
    #[error("csi-cloud did not say in time whether another node has it")]
    Silent,
}

/// Asks the cloud for leases.
pub struct LeaseClient {
    begun: Instant,
    to: watch::Sender<To>,
    /// Grows when all leases are to be reported again: the link is new, or work was left.
    restatements: watch::Sender<u64>,
    next: AtomicU64,
}

impl Default for LeaseClient {
    fn default() -> Self {
        let to = watch::Sender::default();
        let restatements = watch::Sender::default();
        let next = AtomicU64::default();
        Self { begun: Instant::now(), to, restatements, next }
    }
}

impl LeaseClient {
    /// Sends requests to a new link from now on; they come out of the receiver.
    pub fn linked(&self) -> mpsc::Receiver<LeaseRequest> {
        let (sender, requests) = mpsc::channel(QUEUE);
        self.to.send_replace(To::Link(self.next.fetch_add(1, Ordering::Relaxed), sender));
        self.restate_all();
        requests
    }

    /// Has all leases reported again.
    pub fn restate_all(&self) {
        self.restatements.send_modify(|restatements| *restatements += 1);
    }

    /// Changes when all leases are to be reported.
    pub fn restatements(&self) -> watch::Receiver<u64> {
        self.restatements.subscribe()
    }

    /// The number of the link that takes requests, if there is one.
    pub fn link(&self) -> Option<u64> {
        match &*self.to.borrow() {
            To::Link(number, link) if !link.is_closed() => Some(*number),
            To::Link(..) | To::Nobody => None,
        }
    }

    /// Waits for the first link, in the first seconds of this csi-edge.
    pub async fn first_link(&self) {
        let mut to = self.to.subscribe();
        let linked = to.wait_for(|to| !matches!(to, To::Nobody));
        // Without a link in time, it goes on without one.
        let _ = tokio::time::timeout_at(self.begun + FIRST, linked).await;
    }

    /// Sends a request and waits for the answer, at most `patience`. Without a link it waits for
    /// one. The number is that of the answer's link.
    ///
    /// # Errors
    /// There is no answer within `patience`; [`NoAnswer`] says why.
    pub async fn ask(
        &self,
        driver: &DriverName,
        volume: &str,
        step: LeaseAction,
        patience: Duration,
    ) -> Result<(Outcome, u64), NoAnswer> {
        let mut to = self.to.subscribe();
        let asking = async {
            loop {
                let link = to.borrow_and_update().clone();
                let answered = self.ask_on(&link, driver, volume, step.clone());
                // A replaced link's answer does not matter: the cloud ignores that link.
                let answer = tokio::select! {
                    biased;
                    answer = answered => answer,
                    _ = to.changed() => continue,
                };
                if let Some(answer) = answer {
                    return answer;
                }
                // The sender lives as long as `self`, so this does not fail.
                let _ = to.changed().await;
            }
        };
        tokio::time::timeout(patience, asking).await.map_err(|_| self.no_answer())
    }

    /// None if there is no link, or it is gone.
    async fn ask_on(
        &self,
        to: &To,
        driver: &DriverName,
        volume: &str,
        step: LeaseAction,
    ) -> Option<(Outcome, u64)> {
        let To::Link(number, link) = to else { return None };
        let (answer, answered) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let request = Request { id, driver: driver.clone(), volume: volume.to_owned(), step };
        link.send(LeaseRequest { request, answer }).await.ok()?;
        Some((answered.await.ok()?, *number))
    }

    fn no_answer(&self) -> NoAnswer {
        match &*self.to.borrow() {
            To::Link(_, link) if !link.is_closed() => NoAnswer::Silent,
            To::Link(..) | To::Nobody => NoAnswer::NoLink,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    async fn release(client: &LeaseClient) -> Result<Outcome, NoAnswer> {
        let answer =
            client.ask(&"d.example".parse().unwrap(), "v", LeaseAction::Release, PATIENCE).await;
        answer.map(|(answer, _)| answer)
    }

    #[tokio::test(start_paused = true)]
    async fn why_there_is_no_answer_is_known() {
        let client = LeaseClient::default();
        assert_eq!(release(&client).await, Err(NoAnswer::NoLink));
        let requests = client.linked();
        assert_eq!(release(&client).await, Err(NoAnswer::Silent));
        drop(requests);
        assert_eq!(release(&client).await, Err(NoAnswer::NoLink));
        assert_eq!(client.link(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_link_is_waited_for_and_not_for_long() {
        let client = LeaseClient::default();
        let begun = Instant::now();
        client.first_link().await;
        assert_eq!(begun.elapsed(), FIRST);
        client.first_link().await;
        assert_eq!(begun.elapsed(), FIRST, "it is cut off, and goes on");
        let client = LeaseClient::default();
        let linked = async {
            tokio::time::sleep(FIRST / 2).await;
            client.linked()
        };
        let ((), requests) = tokio::join!(client.first_link(), linked);
        assert_eq!(begun.elapsed(), FIRST + FIRST / 2);
        let first = client.link();
        drop(requests);
        client.first_link().await;
        assert_eq!(begun.elapsed(), FIRST + FIRST / 2, "a lost link is not the first one");
        let _requests = client.linked();
        assert!(client.link().is_some() && client.link() != first);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_goes_out_again_on_the_link_that_replaces_its_own() {
        let client = LeaseClient::default();
        let mut older = client.linked();
        let (answer, ()) = tokio::join!(release(&client), async {
            let first = older.recv().await.unwrap();
            let mut newer = client.linked();
            let again = newer.recv().await.unwrap();
            assert_ne!(first.request.id, again.request.id);
            let _ = first.answer.send(Outcome::NotNow { why: String::new() });
            again.answer.send(Outcome::Released).unwrap();
        });
        assert_eq!(answer, Ok(Outcome::Released));
    }
}
