//! Transactions, and what real etcd refuses of them.

use std::collections::BTreeSet;

use crate::etcd::api::compare::{CompareResult, TargetUnion};
use crate::etcd::api::request_op::Request;
use crate::etcd::api::response_op::Response;
use crate::etcd::api::{
    Compare, DeleteRangeResponse, KeyValue, PutRequest, PutResponse, RequestOp, ResponseOp,
    TxnRequest, TxnResponse,
};
use prost::Message;
use tonic::{Code, Status};

use super::keys::{Keys, Span, refusal};
use super::leases::Leases;

/// The most requests in a list of a transaction (`--max-txn-ops`).
const MOST: usize = 128;
/// The most bytes of a request (`--max-request-bytes`).
const LARGEST: usize = 1536 * 1024;

/// True if the transaction can change keys.
pub(super) fn is_write(request: &TxnRequest) -> bool {
    let reads = |op: &RequestOp| matches!(op.request, Some(Request::RequestRange(_)));
    !request.success.iter().chain(&request.failure).all(reads)
}

/// Does a transaction, whole or not at all.
pub(super) fn run(
    keys: &mut Keys,
    leases: &mut Leases,
    request: &TxnRequest,
) -> Result<TxnResponse, Status> {
    for list in [&request.success, &request.failure] {
        check(list, leases)?;
    }
    if request.encoded_len() > LARGEST {
        return Err(refusal(Code::InvalidArgument, "request is too large"));
    }
    let mut succeeded = true;
    for compare in &request.compare {
        succeeded &= holds(keys, compare)?;
    }
    let list = if succeeded { &request.success } else { &request.failure };
    let mut responses = Vec::new();
    for op in list {
        let response = Some(answer(keys, leases, op)?);
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse { header: None, succeeded, responses })
}

fn check(list: &[RequestOp], leases: &Leases) -> Result<(), Status> {
    if list.len() > MOST {
        return Err(refusal(Code::InvalidArgument, "too many operations in txn request"));
    }
    let mut changed = BTreeSet::new();
    for op in list {
        let key = match &op.request {
            Some(Request::RequestPut(put)) => {
                leases.check(put.lease)?;
                &put.key
            }
            Some(Request::RequestDeleteRange(delete)) => &delete.key,
            Some(Request::RequestRange(_)) => continue,
            None => return Err(Status::unimplemented("this etcd has no nested transactions")),
        };
        if !changed.insert(key) {
            return Err(refusal(Code::InvalidArgument, "duplicate key given in txn request"));
        }
    }
    Ok(())
}

fn holds(keys: &Keys, compare: &Compare) -> Result<bool, Status> {
    if !compare.range_end.is_empty() {
        return Err(Status::unimplemented("this etcd compares single keys"));
    }
    let kv = keys.get(&compare.key);
    let number = |of: fn(&KeyValue) -> i64| kv.map_or(0, of);
    let ordering = match &compare.target_union {
        Some(TargetUnion::Version(than)) => number(|kv| kv.version).cmp(than),
        Some(TargetUnion::CreateRevision(than)) => number(|kv| kv.create_revision).cmp(than),
        Some(TargetUnion::ModRevision(than)) => number(|kv| kv.mod_revision).cmp(than),
        Some(TargetUnion::Lease(than)) => number(|kv| kv.lease).cmp(than),
        Some(TargetUnion::Value(than)) => match kv {
            Some(kv) => kv.value.cmp(than),
            // A key that is not there has no value to compare.
            None => return Ok(false),
        },
        None => return Err(refusal(Code::InvalidArgument, "a compare without a target")),
    };
    Ok(match compare.result() {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
        CompareResult::NotEqual => ordering.is_ne(),
    })
}

fn answer(keys: &mut Keys, leases: &mut Leases, op: &RequestOp) -> Result<Response, Status> {
    match &op.request {
        Some(Request::RequestRange(range)) => Ok(Response::ResponseRange(keys.range(range)?)),
        Some(Request::RequestPut(put)) => Ok(Response::ResponsePut(set(keys, leases, put))),
        Some(Request::RequestDeleteRange(delete)) => {
            let names = keys.names(&Span::new(&delete.key, &delete.range_end));
            names.iter().for_each(|key| remove(keys, leases, key));
            let deleted = i64::try_from(names.len()).unwrap_or(i64::MAX);
            let deleted = DeleteRangeResponse { deleted, ..DeleteRangeResponse::default() };
            Ok(Response::ResponseDeleteRange(deleted))
        }
        None => Err(Status::unimplemented("no such request")),
    }
}

fn set(keys: &mut Keys, leases: &mut Leases, put: &PutRequest) -> PutResponse {
    let prev_kv = keys.get(&put.key).filter(|_| put.prev_kv).cloned();
    leases.attach(&put.key, put.lease);
    keys.put(&put.key, put.value.clone(), put.lease);
    PutResponse { header: None, prev_kv }
}

fn remove(keys: &mut Keys, leases: &mut Leases, key: &[u8]) {
    leases.attach(key, 0);
    keys.delete(key);
}
