//! What the parts of aiprof's agent share.
//!
//! The agent is several programs, so that what has privileges has no network:
//!
//! - `aiprof agent` records, with privileges and without network, and puts what it has
//!   made of each window into a [`spool`];
//! - `aiprof-send` has no privileges and delivers what the spool holds, and serves metrics;
//! - `aiprof-query` asks a lake.
//!
//! All read one [`config`] file; each reports its state to the others in a [`status`] file.

pub mod config;
pub mod identity;
pub mod place;
pub mod secret;
pub mod shared;
pub mod spool;
pub mod status;
