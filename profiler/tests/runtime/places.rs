//! Where libraries are, and when they appear.
