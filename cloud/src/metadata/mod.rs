//! The objects of Kubernetes that concern each node's volumes, kept here and sent to its edge.
//!
//! A node sees its own Pods, and what these lead to, and nothing else. Kubernetes' watches fill the
//! index; links send what has changed since the position that an edge stated. Nothing here asks
//! Kubernetes. May use: state.

pub mod decide;
pub mod handlers;
pub mod index;
pub mod inventory;
pub mod sending;
pub mod shared;
pub mod transfer;
pub mod view;
