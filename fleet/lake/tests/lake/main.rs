//! What goes into a lake comes out of it, whatever happens on the way.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may end where they are wrong"
)]

mod common;
mod compaction;
mod readers;
mod rolling_up;
mod s3;
