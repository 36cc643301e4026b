//! Lists over all nodes of a driver whose volumes live on single nodes.
//!
//! `merged` asks the nodes, then answers from the store; a list is complete or an error. `health`
//! asks linked nodes only. `background` refreshes lists without a caller.

pub mod background;
mod backoff;
pub mod faults;
pub mod first_lists;
pub mod health;
pub mod kind;
pub mod merged;
pub mod page;
pub mod progress;
pub mod refresh;
pub mod token;
mod turns;
mod unlisted;
pub mod whole;

#[cfg(test)]
mod tests;
