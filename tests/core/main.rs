//! The first tier: unit tests aside, what `cargo xtask test` runs. Each promise of the README once.
//!
//! The folder of a test determines what may run beside it: `.config/nextest.toml` goes by the path.

/// Tests that record nothing: as many at once as there are CPUs.
mod files {
    automod::dir!("core/files");
}

/// Tests that are judged by their own processes: two at a time.
mod pairs {
    automod::dir!("core/pairs");
}

/// Tests that need the machine for themselves.
mod alone {
    automod::dir!("core/alone");
}
