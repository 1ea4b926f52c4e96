//! Files that are read and written.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod export;
pub mod import;
pub mod timeline;
