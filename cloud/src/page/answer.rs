//! Answers, and what every answer carries so that a browser runs and shows nothing of others.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION, REFERRER_POLICY,
    RETRY_AFTER, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};
use hyper::body::{Body, Frame};
use maud::Markup;
use tokio::sync::mpsc;

/// Nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
/// Files whose address changes with their content.
const FOR_EVER: &str = "private, max-age=31536000, immutable";

/// An answer of the page.
pub(super) type Answer = Response<PageBody>;

/// The body of an answer.
pub(super) enum PageBody {
    /// All of it at once.
    Whole(Option<Bytes>),
    /// Events as they happen.
    Events(mpsc::Receiver<Bytes>),
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(whole.take()),
            Self::Events(events) => events.poll_recv(context),
        };
        data.map(|data| data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }
}

/// A page.
pub(super) fn page(status: StatusCode, markup: Markup) -> Answer {
    whole(status, "text/html; charset=utf-8", markup.into_string())
}

/// A file of the page.
pub(super) fn file((content_type, content): (&'static str, &'static str)) -> Answer {
    let mut answer = whole(StatusCode::OK, content_type, content);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(FOR_EVER));
    answer
}

/// A line of text.
pub(super) fn text(status: StatusCode, text: &'static str) -> Answer {
    whole(status, "text/plain; charset=utf-8", text)
}

/// The same as `answer`, to be tried again after some seconds.
pub(super) fn later(mut answer: Answer, seconds: u64) -> Answer {
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    answer
}

/// Leads to another page of ours; with a cookie if there is one to set.
pub(super) fn redirect(to: &str, cookie: Option<&str>) -> Answer {
    let mut answer = whole(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", Bytes::new());
    let Ok(to) = HeaderValue::from_str(to) else {
        return text(StatusCode::BAD_REQUEST, "that is no address\n");
    };
    answer.headers_mut().insert(LOCATION, to);
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(cookie).ok()) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}

/// Events, as they come.
pub(super) fn events(events: mpsc::Receiver<Bytes>) -> Answer {
    let mut answer = answer("text/event-stream", PageBody::Events(events));
    // A proxy that collects events would show them late.
    let name = HeaderName::from_static("x-accel-buffering");
    answer.headers_mut().insert(name, HeaderValue::from_static("no"));
    answer
}

/// The same, with how long it took to make.
pub(super) fn timed(mut answer: Answer, took: tokio::time::Duration) -> Answer {
    let millis = took.as_secs_f64() * 1000.0;
    if let Ok(value) = HeaderValue::from_str(&format!("render;dur={millis:.1}")) {
        answer.headers_mut().insert(HeaderName::from_static("server-timing"), value);
    }
    answer
}

fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = answer(content_type, PageBody::Whole(Some(body.into())));
    *answer.status_mut() = status;
    answer
}

fn answer(content_type: &'static str, body: PageBody) -> Answer {
    let mut answer = Response::new(body);
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use maud::html;

    use super::*;

    #[tokio::test]
    async fn no_answer_lets_others_in() {
        let (_send, receive) = mpsc::channel(1);
        for answer in [
            page(StatusCode::OK, html! { p { "x" } }),
            file(("text/css", "x")),
            text(StatusCode::NOT_FOUND, "x"),
            redirect("/login", None),
            events(receive),
        ] {
            let header = |name: HeaderName| answer.headers()[name].to_str().unwrap().to_owned();
            assert!(header(CONTENT_SECURITY_POLICY).contains("default-src 'none'"));
            assert!(!header(CONTENT_SECURITY_POLICY).contains("unsafe"));
            assert_eq!(header(X_CONTENT_TYPE_OPTIONS), "nosniff");
            assert_eq!(header(REFERRER_POLICY), "no-referrer");
        }
        let body = text(StatusCode::OK, "whole").into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "whole");
    }

    #[test]
    fn an_address_that_is_none_is_no_redirect() {
        assert_eq!(redirect("/a\r\nb: c", None).status(), StatusCode::BAD_REQUEST);
        let answer = redirect("/", Some("a=b"));
        assert_eq!(
            (answer.status(), &answer.headers()[SET_COOKIE]),
            (StatusCode::SEE_OTHER, &HeaderValue::from_static("a=b"))
        );
    }
}
