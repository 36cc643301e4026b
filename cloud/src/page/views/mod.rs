//! What is shown: each view is a function from values to markup.
//!
//! maud escapes every text. Texts of peers are made plain before, so that no control character or
//! mark of direction reaches a browser.

pub(super) mod calls;
pub(super) mod certificates;
pub(super) mod find;
pub(super) mod frame;
pub(super) mod link;
pub(super) mod login;
pub(super) mod map;
pub(super) mod node;
pub(super) mod nodes;
pub(super) mod overview;
pub(super) mod replicas;
pub(super) mod subject;
pub(super) mod time;
pub(super) mod timeline;
pub(super) mod volumes;
pub(super) mod words;
pub(super) mod wrong;
