//! One direct volume on this node: its device, its file system, its target and its runtime entry.
//!
//! Promises: no two volumes have one device; a runtime hears no more of a volume before its device
//! is checked for users; what is not known is neither yes nor no. It may use `error`, `records`,
//! `device`, `format` and `runtimes`.

pub(crate) mod attach;
pub(crate) mod cover;
pub(crate) mod hold;
pub(crate) mod node;
pub(crate) mod orphan;
pub(crate) mod release;
pub(crate) mod target;
pub(crate) mod verify;
