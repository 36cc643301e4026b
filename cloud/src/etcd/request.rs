//! The parts of requests: ranges of keys, conditions, and changes of one key.

use crate::etcd::api::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcd::api::request_op::Request;
use crate::etcd::api::response_op::Response;
use crate::etcd::api::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest,
    TxnResponse,
};

/// The first key after all that begin with this one, which ends with a byte below 255.
pub fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// Reads one key.
pub fn get(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

/// Reads all keys that begin with this one.
pub fn get_all(prefix: &[u8]) -> RangeRequest {
    RangeRequest { range_end: after_prefix(prefix), ..get(prefix) }
}

/// A transaction that reads one range after another, all at one revision.
pub fn read(ranges: impl IntoIterator<Item = RangeRequest>) -> TxnRequest {
    let success = ranges.into_iter().map(|range| of(Request::RequestRange(range)));
    TxnRequest { success: success.collect(), ..TxnRequest::default() }
}

/// The keys in the answer to [`read`], range by range; a range that has no answer is empty.
pub fn ranges<const N: usize>(answer: TxnResponse) -> [Vec<KeyValue>; N] {
    let mut answers = answer.responses.into_iter();
    std::array::from_fn(|_| match answers.next().and_then(|answer| answer.response) {
        Some(Response::ResponseRange(range)) => range.kvs,
        _ => Vec::new(),
    })
}

/// Sets a key, which goes with the lease; 0 is none.
pub fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    of(Request::RequestPut(PutRequest { key: key.into(), value, lease, ..PutRequest::default() }))
}

/// Deletes a key.
pub fn delete(key: &[u8]) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() };
    of(Request::RequestDeleteRange(delete))
}

/// Deletes all keys that begin with this one.
pub fn delete_all(prefix: &[u8]) -> RequestOp {
    let range_end = after_prefix(prefix);
    let delete = DeleteRangeRequest { key: prefix.into(), range_end, prev_kv: false };
    of(Request::RequestDeleteRange(delete))
}

fn of(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// True if the key was created at this revision; 0 is a key that is not there.
pub fn is_created_at(key: &[u8], revision: i64) -> Compare {
    equal(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

/// True if the key has this value. A key that is not there has none.
pub fn has_value(key: &[u8], value: Vec<u8>) -> Compare {
    equal(key, CompareTarget::Value, TargetUnion::Value(value))
}

fn equal(key: &[u8], target: CompareTarget, to: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.into(),
        range_end: Vec::new(),
        target_union: Some(to),
    }
}
