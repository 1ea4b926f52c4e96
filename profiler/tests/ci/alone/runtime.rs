//! Probes on functions of libraries, live: what of a compiled program's calls is
//! seen. Needs root and compilers; says so and passes where they are missing.

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
