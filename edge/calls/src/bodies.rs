//! The memory for requests that are still arriving.
//!
//! A caller can begin a request with each stream, and end none. So what is larger than a small
//! request takes its room from a budget before it is read, a link has a quarter of it at most, and
//! a request has ten seconds to be whole. Its room is free again when nobody has its bytes any
//! more.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use proto::csi::frame::{FrameError, MAX_MESSAGE, PREFIX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The bytes of all large requests. Four links have room for one of the largest each.
const TOTAL: usize = 4 * SHARE;
/// The bytes of the large requests of one link, or of one of the node's own callers: at least one
/// of the largest.
const SHARE: usize = MAX_MESSAGE + PREFIX;
/// A request of up to so many bytes takes nothing from the budget. A link has 4096 streams, so
/// these are 16 MiB; few requests of CSI are larger.
const SMALL: usize = 4096;
/// Large requests of a link that may wait for room. More are refused.
const WAITING: usize = 64;
/// The time for a request to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);

/// The reason why there is no whole request.
pub(crate) enum NoBody {
    /// It is not one message, or broke off.
    Frame(FrameError),
    /// It was not there in time, or found no room.
    Late,
}

impl From<FrameError> for NoBody {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

/// The budget of one csi-edge.
pub(crate) struct BodyBudget(Arc<Semaphore>);

/// The part of the budget that one link may use. Clones share it.
#[derive(Clone)]
pub struct BodyShare {
    own: Arc<Semaphore>,
    total: Arc<Semaphore>,
    /// One for each request that waits for room: it holds what it has read.
    waiting: Arc<Semaphore>,
}

/// The bytes of a large request, with their room.
struct LargeBody {
    bytes: Bytes,
    _room: [OwnedSemaphorePermit; 2],
}

impl AsRef<[u8]> for LargeBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TOTAL)))
    }
}

impl BodyBudget {
    /// A part of the budget, for a link.
    pub(crate) fn share(&self) -> BodyShare {
        BodyShare {
            own: Arc::new(Semaphore::new(SHARE)),
            total: self.0.clone(),
            waiting: Arc::new(Semaphore::new(WAITING)),
        }
    }
}

impl BodyShare {
    /// Reads a body of one message to its end, and returns it as it came, prefix included.
    ///
    /// # Errors
    /// See [`NoBody`].
    pub(crate) async fn collect<B>(&self, body: B) -> Result<Bytes, NoBody>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        timeout(ARRIVAL, self.read(body)).await.unwrap_or(Err(NoBody::Late))
    }

    async fn read<B>(&self, body: B) -> Result<Bytes, NoBody>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = pin!(body);
        let mut whole = BytesMut::new();
        let mut limit = SMALL;
        let mut room = None;
        while let Some(data) = next(&mut body).await? {
            let length = whole.len() + data.len();
            if room.is_none() && length > SMALL {
                limit = expected(&whole, &data)?;
                room = Some(self.room(limit).await.ok_or(NoBody::Late)?);
                whole.reserve(limit.saturating_sub(whole.len()));
            }
            if length > limit {
                return Err(FrameError::Malformed("bytes after the message").into());
            }
            // Most requests come in one piece, which is not copied. Another one is, since a piece
            // keeps all that was read with it.
            if whole.is_empty() && body.is_end_stream() {
                return Ok(with_room(data, room));
            }
            whole.extend_from_slice(&data);
        }
        Ok(with_room(whole.freeze(), room))
    }

    /// Waits for room for a request of this length. `None` if too many wait.
    async fn room(&self, length: usize) -> Option<[OwnedSemaphorePermit; 2]> {
        let length = u32::try_from(length).ok()?;
        let _waiting = self.waiting.try_acquire().ok()?;
        // First the link's own: who waits for that holds nothing of the others'.
        let own = self.own.clone().acquire_many_owned(length).await.ok()?;
        let of_total = self.total.clone().acquire_many_owned(length).await.ok()?;
        Some([own, of_total])
    }
}

/// The bytes, which keep their room as long as anybody has them.
fn with_room(bytes: Bytes, room: Option<[OwnedSemaphorePermit; 2]>) -> Bytes {
    match room {
        Some(room) => Bytes::from_owner(LargeBody { bytes, _room: room }),
        None => bytes,
    }
}

/// The next bytes of a body; `None` at its end.
async fn next<B>(body: &mut std::pin::Pin<&mut B>) -> Result<Option<Bytes>, FrameError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| FrameError::Broken(error.into()))?;
        if let Ok(data) = frame.into_data()
            && !data.is_empty()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The length of the body that begins so, by its prefix.
fn expected(whole: &[u8], data: &[u8]) -> Result<usize, FrameError> {
    let mut prefix = whole.iter().chain(data).copied();
    prefix.next();
    let length: Vec<u8> = prefix.take(PREFIX - 1).collect();
    let length = <[u8; 4]>::try_from(length).map_or(0, u32::from_be_bytes);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        return Err(FrameError::TooLarge);
    }
    Ok(length + PREFIX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt, StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use proptest::prelude::*;
    use proto::csi::frame;
    use tokio::time::Instant;

    use super::*;

    type Pieces = stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>;

    /// A body that arrives in pieces of this size, and may then go on without end.
    fn body(bytes: &[u8], size: usize, ends: bool) -> StreamBody<Pieces> {
        let pieces: Vec<_> = bytes
            .chunks(size)
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let pieces = stream::iter(pieces);
        StreamBody::new(if ends { pieces.boxed() } else { pieces.chain(stream::pending()).boxed() })
    }

    fn message(length: usize) -> Bytes {
        frame::frame(&vec![7; length])
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_do_not_end_take_a_quarter_and_ten_seconds() {
        let budget = BodyBudget::default();
        let [bad, good] = [budget.share(), budget.share()];
        let large = message(MAX_MESSAGE);
        let endless: Vec<_> =
            (0..400).map(|_| bad.collect(body(&large, 16 * 1024, false)).boxed_local()).collect();
        let mut endless = futures_util::future::join_all(endless);
        let begun = Instant::now();
        assert!(timeout(Duration::from_secs(1), &mut endless).await.is_err());
        assert_eq!(budget.0.available_permits(), TOTAL - SHARE);
        // Another link, and small requests of the same, are not held up.
        let other = good.collect(body(&large, 16 * 1024, true)).await;
        assert!(other.is_ok_and(|body| body == large));
        let small = bad.collect(body(&message(4000), 100, true)).await;
        assert!(small.is_ok_and(|body| body == message(4000)));
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        for ended in endless.await {
            assert!(matches!(ended, Err(NoBody::Late)));
        }
        assert_eq!(begun.elapsed(), ARRIVAL);
        assert_eq!(budget.0.available_permits(), TOTAL);
    }

    #[tokio::test]
    async fn room_is_free_when_nobody_has_the_bytes() {
        let budget = BodyBudget::default();
        let large = message(100_000);
        let Ok(held) = budget.share().collect(body(&large, 1000, true)).await else {
            panic!("it is whole");
        };
        let inner = frame::message(&held).unwrap();
        drop(held);
        assert_eq!(budget.0.available_permits(), TOTAL - large.len());
        drop(inner);
        assert_eq!(budget.0.available_permits(), TOTAL);
    }

    #[tokio::test]
    async fn what_is_longer_than_it_says_is_no_message() {
        let share = BodyBudget::default().share();
        let longer = [message(10).to_vec(), vec![0; 10_000]].concat();
        let why = share.collect(body(&longer, 100, true)).await.err();
        assert!(matches!(why, Some(NoBody::Frame(FrameError::Malformed(_)))));
        let huge = [&[0, 255, 255, 255, 255][..], &[0; 10_000]].concat();
        let why = share.collect(body(&huge, 100, true)).await.err();
        assert!(matches!(why, Some(NoBody::Frame(FrameError::TooLarge))));
    }

    proptest! {
        #[test]
        fn an_honest_body_is_read_however_it_arrives(
            length in 0..200_000_usize,
            size in 1..20_000_usize,
        ) {
            let sent = message(length);
            let share = BodyBudget::default().share();
            let read = share.collect(body(&sent, size.max(length / 100), true));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let read = runtime.unwrap().block_on(read);
            prop_assert!(read.is_ok_and(|read| read == sent));
        }
    }
}
