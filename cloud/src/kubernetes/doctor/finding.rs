//! What the doctor says of one thing.

use proto::host::chain;
use serde::{Deserialize, Serialize};

use crate::kubernetes::api::ApiError;

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it has to be.
    Ok,
    /// Something does not work until it is mended.
    Problem,
    /// It cannot be seen from here.
    Unknown,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was checked: a word that does not change.
    pub check: String,
    /// The object: `ClusterRole cloudcore`.
    pub about: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; empty if all is well.
    pub advice: String,
}

impl Finding {
    /// It is as it has to be.
    pub(super) fn ok(check: &str, about: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            about: about.into(),
            verdict: Verdict::Ok,
            found: found.into(),
            advice: String::new(),
        }
    }

    /// It is not.
    pub(super) fn problem(
        check: &str,
        about: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let ok = Self::ok(check, about, found);
        Self { verdict: Verdict::Problem, advice: advice.into(), ..ok }
    }

    /// It cannot be seen.
    pub(super) fn unknown(
        check: &str,
        about: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let ok = Self::ok(check, about, found);
        Self { verdict: Verdict::Unknown, advice: advice.into(), ..ok }
    }
}

/// What looking for an object gave.
pub(super) enum Looked<T> {
    /// It is there.
    Found(T),
    /// It is not.
    Missing,
    /// The API server does not show it, for this reason.
    Hidden(String),
}

impl<T> From<Result<T, ApiError>> for Looked<T> {
    fn from(answered: Result<T, ApiError>) -> Self {
        match answered {
            Ok(found) => Self::Found(found),
            Err(ApiError::Missing) => Self::Missing,
            Err(error) => Self::Hidden(chain(&error)),
        }
    }
}

/// What is said of an object that the API server does not show.
pub(super) fn hidden(check: &str, about: &str, why: &str) -> Finding {
    Finding::unknown(
        check,
        about,
        format!("it cannot be read: {why}"),
        "give csi-cloud the rights of deploy/kustomize/components/kubeedge (in the chart: \
         kubeedge: true), or look yourself",
    )
}
