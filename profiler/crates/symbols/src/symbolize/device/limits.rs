//! How much of a module is read, and how much work may go into it.

/// Largest module.
pub(crate) const MAX_MODULE: usize = 64 << 20;
/// Most pieces of code in a module.
pub(crate) const MAX_KERNELS: usize = 65_536;
/// Longest name of a kernel, in bytes: SYCL's names hold whole types.
pub(crate) const MAX_NAME: usize = 16 << 10;
/// Most bytes of names and paths kept of a module.
pub(crate) const MAX_TEXT: usize = 16 << 20;
/// Most rows of line tables kept of a module (16 bytes each).
pub(crate) const MAX_ROWS: usize = 1 << 20;
/// Most functions and ranges of functions kept of a module.
pub(crate) const MAX_SCOPES: usize = 1 << 18;
/// Most steps for one module: bytes, attributes, rows and relocations looked at.
/// A module of 200 kernels takes about a million.
const MAX_STEPS: u64 = 64 << 20;

/// Steps left for a module.
#[derive(Debug)]
pub(crate) struct StepBudget {
    left: u64,
}

/// The budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl StepBudget {
    /// What one module may take.
    pub(crate) fn of_module() -> Self {
        Self { left: MAX_STEPS }
    }

    /// Takes `steps`; fails for good once there are too few.
    pub(crate) fn spend(&mut self, steps: u64) -> Result<(), Exhausted> {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.map(|_| ()).ok_or(Exhausted)
    }
}
