//! Analyses of traces.
