//! What PyTorch's own tools answer of its profiler's traces (Kineto), and what its
//! compiler left in them: `key_averages()`, compiled regions, graph breaks, pairs of
//! forward and backward.
//!
//! The rules are those of `torch/autograd/profiler_util.py` and `profiler.py` of
//! PyTorch 2.11, down to the order of additions, so that the numbers are torch's own.

pub mod averages;
mod calls;
pub mod compile;
mod flops;
mod formulas;
mod inputs;
pub mod log;
mod memory;
pub mod modules;
mod nesting;
pub mod operator_work;
pub mod pairs;
mod phases;
mod python;
mod shapes;
mod stacks;
mod sums;
pub mod triton;

pub use inputs::ElementType;
pub(crate) use modules::{MODULE, frames};
pub use nesting::TorchIndex;
pub(crate) use pairs::EVALUATE;
pub use phases::WorkPhase;
