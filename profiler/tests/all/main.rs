//! The third tier, which `cargo xtask test --all` adds: storms, attacks, originals, viewers, costs.
//!
//! The folder of a test determines what may run beside it: `.config/nextest.toml` goes by the path.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]

/// Tests that need the machine for themselves.
mod alone {
    automod::dir!("tests/all/alone");
}
