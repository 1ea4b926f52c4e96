//! Probes on the functions of accelerator runtimes.
//!
//! * [`symbols`]: which functions of a file the tables name;
//! * [`decode`]: where in a function its probes go;
//! * [`library`]: both, for one file;

mod attach;
mod decode;
mod discover;
mod library;
mod plan;
mod registry;
mod symbols;
