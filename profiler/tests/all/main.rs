//! The third tier, which `cargo xtask test --all` adds: storms, attacks, originals, viewers, costs.
//!
//! The folder of a test says what may run beside it; `.config/nextest.toml` reads that from its
//! path.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]

/// Tests that need the machine for themselves.
mod alone {
    automod::dir!("tests/all/alone");
}
