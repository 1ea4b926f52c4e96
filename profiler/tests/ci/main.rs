//! The second tier, which `.ci/run` adds: what is judged by counts, names, CPU clocks of programs or
//! times of virtual devices.
//!
//! The folder of a test determines what may run beside it: `.config/nextest.toml` goes by the path.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]

/// Tests that record nothing: as many at once as there are CPUs.
mod files {
    automod::dir!("tests/ci/files");
}

/// Tests that are judged by their own processes: two at a time.
mod pairs {
    automod::dir!("tests/ci/pairs");
}

/// Tests that need the machine for themselves.
mod alone {
    automod::dir!("tests/ci/alone");
}
