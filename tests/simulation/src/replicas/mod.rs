//! Several clouds with one store, in the place of the one cloud of other runs.
//!
//! `clouds` has who lives, `run` a cloud's life, `etcd` its connections to the store, `relay` the
//! way of the sidecars, and `trouble` what goes wrong.

mod clouds;
mod etcd;
mod relay;
mod run;
pub(super) mod trouble;

pub(super) use self::clouds::{RUN, Replicas};
pub(super) use self::relay::take;
