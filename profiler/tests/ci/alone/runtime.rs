//! Probes on functions of libraries, live: which calls of a compiled program are seen. Needs root
//! and compilers; passes, with a message, where they are missing.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "clippy exempts test functions, not what they share"
)]

mod calls;
mod harness;
mod places;
mod rate;
