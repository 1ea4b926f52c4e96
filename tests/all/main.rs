//! The third tier, which `cargo xtask test --all` adds: storms, attacks, originals, viewers, costs.
//!
//! The folder of a test determines what may run beside it: `.config/nextest.toml` goes by the path.

/// Tests that record nothing: as many at once as there are CPUs.
mod files {
    automod::dir!("all/files");
}

/// Tests that need the machine for themselves.
mod alone {
    automod::dir!("all/alone");
}
