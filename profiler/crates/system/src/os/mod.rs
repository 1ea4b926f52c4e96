//! What the operating system lets this process do, and reports about others.
//!
//! * [`privileges`]: capabilities, and giving them up;
//! * [`process`]: which process one is;
//! * [`scheduling`]: which threads run first;
//! * [`users`]: names of users.

pub mod privileges;
pub mod process;
pub mod scheduling;
pub mod users;
