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
pub mod log;
mod memory;
pub mod modules;
mod nesting;
pub mod pairs;
mod python;
mod shapes;
mod stacks;
mod sums;
pub mod triton;

pub(crate) use modules::{MODULE, frames};
pub(crate) use pairs::EVALUATE;
