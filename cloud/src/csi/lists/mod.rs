//! Lists over all nodes of a driver whose volumes live at their nodes.
//!
//! `merged` answers from the store after it asked the nodes; a list is whole or an error. `health` asks only linked
//! nodes. `background` asks what no caller waits for.

pub mod background;
pub mod faults;
pub mod health;
pub mod kind;
pub mod merged;
pub mod page;
pub mod refresh;
pub mod token;
pub mod whole;

#[cfg(test)]
mod tests;
