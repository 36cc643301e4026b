//! The commands' end of the admin socket.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};

use crate::host::tasks::Tasks;

/// The time limit for an answer from memory.
const ANSWER: Duration = Duration::from_secs(4);
/// The time limit for the work of a command.
const PATIENCE: Duration = Duration::from_secs(600);

/// The body of an answer that refuses a command.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For an operator.
    pub error: String,
}

/// The reason why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error(
        "{program} does not answer at {}; is `{program} serve` running, and is that its admin \
         socket (--admin, or --config with its configuration)?", path.display()
    )]
    NotThere {
        /// The program.
        program: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The program went away, or it is another one.
    #[error("{program} broke off; its log may say why")]
    Broken {
        /// The program.
        program: &'static str,
        /// The failure.
        #[source]
        source: hyper::Error,
    },
    /// It takes connections, and there was no answer in time.
    #[error(
        "{program} took the question at {} and did not answer within {limit:?}; it hangs or has \
         too much to do, and its log may say why", path.display()
    )]
    TimedOut {
        /// The program.
        program: &'static str,
        /// The socket.
        path: PathBuf,
        /// The time limit.
        limit: Duration,
    },
    /// The program refuses the command.
    #[error("{0}")]
    Refused(String),
    /// The answer is of another version, say.
    #[error("the answer cannot be read; are both programs of one version?")]
    Unreadable(#[source] serde_json::Error),
}

/// A connection to the admin socket.
pub struct Client {
    program: &'static str,
    path: PathBuf,
    sender: SendRequest<Full<Bytes>>,
    tasks: Tasks,
}

impl Client {
    /// Connects to this program.
    ///
    /// # Errors
    /// Nobody serves the socket.
    pub async fn connect(program: &'static str, path: &Path) -> Result<Self, ClientError> {
        let not_there = |source| ClientError::NotThere { program, path: path.to_owned(), source };
        let stream = UnixStream::connect(path).await.map_err(not_there)?;
        let connected = handshake(TokioIo::new(stream)).await;
        let (sender, connection) =
            connected.map_err(|source| ClientError::Broken { program, source })?;
        let tasks = Tasks::default();
        // A request reports how the connection ended.
        tasks.spawn_until_stop("admin", async move { drop(connection.await) });
        Ok(Self { program, path: path.to_owned(), sender, tasks })
    }

    /// Asks for data that the program has in memory.
    ///
    /// # Errors
    /// The program does not answer, refuses or goes away, or its answer cannot be read.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        path: &'static str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.exchange(ANSWER, path, parameters).await
    }

    /// Sends a command whose work may take long. After some time it says on stderr that it waits.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub async fn carry_out<T: DeserializeOwned>(
        &mut self,
        path: &'static str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        let program = self.program;
        let exchange = pin!(self.exchange(PATIENCE, path, parameters));
        match select(exchange, pin!(sleep(ANSWER))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), exchange)) => {
                eprintln!(
                    "{program} has not answered yet; still waiting, for {PATIENCE:?} at most"
                );
                exchange.await
            }
        }
    }

    /// Asks for data that the program may have to look up elsewhere, within this time.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub async fn exchange<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
        path: &'static str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        let request = self.request(path, parameters)?;
        let asked = async {
            self.sender.ready().await?;
            let (parts, body) = self.sender.send_request(request).await?.into_parts();
            Ok((parts.status, body.collect().await?.to_bytes()))
        };
        let answered = timeout(limit, asked).await;
        let (status, body) = self.in_time(limit, answered)?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(ClientError::Unreadable);
        }
        let refusal: ErrorBody = serde_json::from_slice(&body).map_err(ClientError::Unreadable)?;
        Err(ClientError::Refused(refusal.error))
    }

    /// Asks for data that comes piece by piece, until the client is dropped. The first piece comes
    /// within this time.
    ///
    /// # Errors
    /// The program does not answer, refuses or goes away.
    pub async fn stream(
        &mut self,
        limit: Duration,
        path: &'static str,
        parameters: &impl Serialize,
    ) -> Result<Incoming, ClientError> {
        let request = self.request(path, parameters)?;
        let answered = timeout(limit, self.sender.send_request(request)).await;
        let answer = self.in_time(limit, answered)?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            status => Err(ClientError::Refused(format!(
                "{} refuses with {status}; are both programs of one version?",
                self.program
            ))),
        }
    }

    fn request(
        &self,
        path: &'static str,
        parameters: &impl Serialize,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let body = serde_json::to_vec(parameters).map_err(ClientError::Unreadable)?;
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::from_static(self.program));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(request)
    }

    fn in_time<T>(
        &self,
        limit: Duration,
        answered: Result<hyper::Result<T>, Elapsed>,
    ) -> Result<T, ClientError> {
        let program = self.program;
        let answered = answered.map_err(|_| {
            let path = self.path.clone();
            ClientError::TimedOut { program, path, limit }
        })?;
        answered.map_err(|source| ClientError::Broken { program, source })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixListener;
    use tokio::time::Instant;

    /// A client of a program that takes the connection and answers so late; never if none.
    async fn late(after: Option<Duration>, tasks: &Tasks) -> Client {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        tasks.spawn_until_stop("program", async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let Some(after) = after else { return std::future::pending().await };
            sleep(after).await;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7";
            stream.write_all(answer).await.unwrap();
            std::future::pending().await
        });
        Client::connect("csi-cloud", &path).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_is_not_answered_ends_within_five_seconds() {
        let tasks = Tasks::default();
        let mut client = late(None, &tasks).await;
        let began = Instant::now();
        let error = client.ask::<u8>("/top", &()).await.unwrap_err().to_string();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(error.contains("did not answer within 4s"), "{error}");
        assert!(error.contains("admin.sock"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn work_may_take_longer_and_ends_all_the_same() {
        let tasks = Tasks::default();
        let mut client = late(Some(Duration::from_secs(60)), &tasks).await;
        assert_eq!(client.carry_out::<u8>("/purge", &()).await.unwrap(), 7);
        let mut client = late(None, &tasks).await;
        let error = client.carry_out::<u8>("/purge", &()).await.unwrap_err().to_string();
        assert!(error.contains("within 600s"), "{error}");
    }
}
