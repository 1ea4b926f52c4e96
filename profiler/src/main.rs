//! The `aiprof` binary.
fn main() {}
