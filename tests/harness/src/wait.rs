//! How long tests wait: for states, never for a time.

use std::time::Duration;

use anyhow::bail;

/// How long a program may take until it is ready.
pub const START: Duration = Duration::from_secs(30);
/// How long a program may take to end.
pub const STOP: Duration = Duration::from_secs(15);

/// Repeats a request until it succeeds, at most for [`START`].
///
/// # Errors
/// The last answer, if none was good in time.
pub async fn until<T, F>(what: &str, mut ask: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let deadline = tokio::time::Instant::now() + START;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if tokio::time::Instant::now() >= deadline => {
                bail!("{what}: not within {START:?}: {error:#}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
