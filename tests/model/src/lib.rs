//! Several csi-clouds with one store, as a state machine whose every state is looked at.
//!
//! It has what decides: leader, epoch, intent, home and lease. A rule that is left out must lead to
//! a broken promise. `tests/simulation/README.md` says what the model leaves out of the programs.

pub mod bounds;
pub mod calls;
pub mod commits;
pub mod edge;
pub mod etcd;
pub mod explore;
pub mod properties;
pub mod replica;
pub mod state;
pub mod system;
