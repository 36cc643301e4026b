//! `make hostile`: what hostile peers take from csi-cloud and from honest edges.
//!
//! Each case has a file with its attack and its bounds. Each row says what was asked, what was
//! measured, and whether that is within the bounds.

pub mod command;

mod attacks;
mod claims;
mod clocks;
mod controls;
mod door;
mod elections;
mod endless;
mod fleet;
mod frames;
mod harm;
mod initials;
mod invented;
mod leaders;
mod loops;
mod memory;
mod meter;
mod orders;
mod removal;
mod replays;
mod report;
mod scopes;
mod secrets;
mod segments;
mod served;
mod threads;
mod tokens;
mod unanimous;
mod unread;
mod unwelcomed;
mod visitors;
mod world;
