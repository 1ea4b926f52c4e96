//! Readers that are not ours.
