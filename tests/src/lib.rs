//! End-to-end tests of aiprof.
