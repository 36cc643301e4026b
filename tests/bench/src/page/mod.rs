//! The page in a real browser: Chromium, driven by its own WebDriver.
//!
//! With three real nodes it looks at what an operator does; with thousands of light edges at what
//! it costs.

mod browser;
mod checks;
mod claims;
pub mod command;
mod large;
mod pages;
mod small;
mod watchers;
