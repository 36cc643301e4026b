//! Carries out the calls of a node's front that concern direct volumes, and looks after these
//! volumes without calls.
//!
//! Promises: one operation at a time on a volume, run to its end; all that is wrong with a request
//! is said before anything is done. It may use `error`, `records`, `device`, `runtimes`, `volume`
//! and `lease`.

pub(crate) mod direct;
mod driver_call;
mod front;
mod holders;
mod locks;
mod names;
mod publish;
pub(crate) mod reconcile;
mod request;
mod rounds;
mod runtime;
mod runtime_class;
mod stage;
mod state;
mod unpublish;
mod xfs_gate;
