//! Names of kernel addresses, which the kernel side prints.

/// Addresses that are named at once.
pub const KERNEL_NAMES: usize = 64;
/// Most bytes of a name, with the NUL behind it: what is longer is cut.
pub const KERNEL_NAME_BYTES: usize = 256;

/// Addresses, and what they are called.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNames {
    /// The addresses; 0 behind the last.
    pub addresses: [u64; KERNEL_NAMES],
    /// Their names, NUL-terminated: the function, and behind a blank the module in
    /// brackets; the number where the kernel knows no function.
    pub names: [[u8; KERNEL_NAME_BYTES]; KERNEL_NAMES],
}
const _: () = assert!(size_of::<KernelNames>() == KERNEL_NAMES * (8 + KERNEL_NAME_BYTES));
