//! The one place where files are opened: with whose rights, and how carefully.
//!
//! aiprof runs as root, or with capabilities that let it read everything, on
//! behalf of a user who may not, among users whom it must not trust. So each file
//! is opened as one of seven kinds:
//!
//! - [`as_user`]: what only its user may read, with that user's rights;
//! - [`caller`]: what the caller named on the command line, in the environment or in a table, with
//!   the caller's own rights. Results likewise, in a [`directory`] that a [`place`] was found to be
//!   in;
//! - [`lines`]: what the caller opened and gave by a number;
//! - [`kernel`]: what the kernel itself shows below /proc, /sys and /dev;
//! - [`private`]: what processes of one user share, in a directory that no other user can use;
//! - [`exchange`]: what programs of other users leave for aiprof in a directory of theirs;
//! - [`others`]: what belongs to other users, found from a process's own root
//!   directory, and checked for type, owner and size before it is opened.
//!
//! Nothing outside this module may open files: clippy.toml lists the functions
//! that are not to be used elsewhere.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the module that opens files for all others"
)]

pub mod as_user;
pub mod caller;
pub mod directory;
pub mod exchange;
pub mod kernel;
pub mod lines;
pub mod others;
pub mod place;
pub mod private;
pub mod rights;
