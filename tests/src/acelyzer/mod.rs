//! acelyzer 1.3.0 and `aiprof acelyzer`, side by side on the same input.
//!
//! * [`run`]: runs either in a folder of its own;
//! * [`trace`]: the content of a trace file, in a form that can be compared;
//! * [`table`]: the same of CSV files and tables;
//! * [`console`]: the same of what was printed;
//! * [`compare`]: all differences between two runs.

pub mod compare;
pub mod console;
pub mod run;
pub mod table;
pub mod trace;

pub use compare::differences;
pub use run::{Input, Ran, Which, sample};
