//! Names of kernel addresses, which the Linux kernel prints.

/// Most addresses in one request.
pub const KERNEL_NAMES: usize = 64;
/// Most bytes of a name, with its NUL; longer ones are cut.
pub const KERNEL_NAME_BYTES: usize = 256;

/// Addresses and their names.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNames {
    /// The addresses; 0 after the last.
    pub addresses: [u64; KERNEL_NAMES],
    /// Their names, NUL-terminated: the function, then after a blank the module in brackets;
    /// the number if the Linux kernel knows no function there.
    pub names: [[u8; KERNEL_NAME_BYTES]; KERNEL_NAMES],
}
const _: () = assert!(size_of::<KernelNames>() == KERNEL_NAMES * (8 + KERNEL_NAME_BYTES));
