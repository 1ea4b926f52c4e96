//! Project tasks: `cargo xtask help`.
fn main() {}
