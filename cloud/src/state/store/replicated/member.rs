//! The entry of a replica in etcd, as JSON that people can read too.

use std::sync::Arc;

use proto::link::endpoint::Endpoint;
use serde::{Deserialize, Serialize};

use crate::etcd::api::KeyValue;

/// The value of `leader`, and of `replicas/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Member {
    /// Its name.
    pub(super) name: Arc<str>,
    /// The version of its csi-cloud.
    pub(super) version: String,
    /// Its endpoints for edges.
    pub(super) endpoints: Vec<String>,
    /// The last commit that it has; a leader's key has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) commit: Option<u64>,
}

impl Member {
    /// Reads a value; an unreadable one gives an empty entry.
    pub(super) fn of(found: &KeyValue) -> Self {
        serde_json::from_slice(&found.value).unwrap_or_default()
    }

    /// As bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Texts and numbers have no JSON that fails.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Its endpoints, without those that this csi-cloud cannot name.
    pub(super) fn endpoints(&self) -> Arc<[Endpoint]> {
        self.endpoints.iter().filter_map(|text| text.parse().ok()).collect()
    }
}

/// The leader's key: its entry, the key's revision and its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaderKey {
    pub(super) member: Member,
    pub(super) created: i64,
    pub(super) lease: i64,
}

impl LeaderKey {
    /// Reads the key.
    pub(super) fn of(found: &KeyValue) -> Self {
        let member = Member::of(found);
        Self { member, created: found.create_revision, lease: found.lease }
    }
}
