//! The commands that ask a running csi-edge over its admin socket: tables for people, JSON for
//! scripts. It may use `cli`, `discovery` and `admin`.

mod run;
mod show;

pub use run::run;
