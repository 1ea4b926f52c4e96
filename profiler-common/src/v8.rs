//! The frames of JavaScript's V8: how the programs find the functions in them.
//!
//! Frames of JavaScript are chained by rbp, whichever compiler made their code, and hold the
//! function that they run (a `JSFunction`). The garbage collector moves that object. All
//! closures of one function share a `SharedFunctionInfo`, which moves rarely or never. The walk
//! therefore records the address of the `SharedFunctionInfo` in place of the frame's, with a
//! few bits that identify it, see [`ADDR_JS`].

use crate::{ADDR_EXACT, PoolRef};

/// Marks a user address that is not code but the `SharedFunctionInfo` that a frame of V8 runs.
/// Bits 57 to 59, 61 and 62 are zero then.
pub const ADDR_JS: u64 = 1 << 60;

/// Lower bits of an address that are always zero, because objects are aligned.
const ALIGNED: u64 = 7;
/// Bits of a user address.
const USER_BITS: u32 = 47;
/// Bits above [`USER_BITS`] that are free.
const FREE: u64 = 0x3ff;

/// A function of JavaScript, as a sample names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JsFunction {
    /// Where its `SharedFunctionInfo` was when the sample was taken.
    pub shared: u64,
    /// Distinguishes it from a function that is later at this address: [`js_check`].
    pub check: u16,
}

impl JsFunction {
    /// The address that stands for it in a sample.
    #[inline(always)]
    #[must_use]
    pub const fn to_address(self) -> u64 {
        let check = self.check as u64;
        let shared = self.shared & ((1 << USER_BITS) - 1) & !ALIGNED;
        ADDR_JS | shared | check & ALIGNED | (check >> 3 & FREE) << USER_BITS
    }

    /// The function that an address of a sample stands for, if any.
    #[must_use]
    pub const fn of(address: u64) -> Option<Self> {
        let plain = address & !ADDR_EXACT;
        if plain >> 57 != ADDR_JS >> 57 {
            return None;
        }
        Some(Self {
            shared: plain & ((1 << USER_BITS) - 1) & !ALIGNED,
            check: (plain & ALIGNED | (plain >> USER_BITS & FREE) << 3) as u16,
        })
    }
}

/// 13 bits that identify a function: from the number of its script, which V8 uses once, and
/// from its own number in the script (`Script::id`, `SharedFunctionInfo::function_literal_id`).
/// Functions with neighbouring numbers have different ones.
#[inline(always)]
#[must_use]
pub const fn js_check(script: u32, literal: u32) -> u16 {
    (script.wrapping_mul(613).wrapping_add(literal) & 0x1fff) as u16
}

/// Most places where a process has the code of V8's interpreter.
pub const MAX_V8_INTERPRETERS: usize = 2;

/// A block of the pool: how a process's V8 describes its functions. Fields that are named after
/// an object are offsets in it, in bytes; names are V8's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V8Layout {
    /// Identity of this incarnation of the block, never 0.
    pub owner: u32,
    /// 1: the walk names the functions of generated code, too; 0: something else names them.
    pub generated: u32,
    /// First addresses of the interpreter's code (`Builtins_InterpreterEntryTrampoline`); 0:
    /// none. The first is in the mapped file. The second is where V8 has mapped that code
    /// again, near the code that it generates.
    pub interpreters: [u64; MAX_V8_INTERPRETERS],
    /// Bytes of the interpreter's code.
    pub interpreter_size: u64,
    /// Bytes of V8's other built-in functions before it, and of all built-in functions together
    /// (`v8_Default_embedded_blob_code_`); 0: not known.
    pub builtins_before: u64,
    pub builtins_size: u64,
    /// `JSFunction::shared`.
    pub function_shared: u16,
    /// `SharedFunctionInfo::script`.
    pub shared_script: u16,
    /// `SharedFunctionInfo::flags`, a `u32` that `function_literal_id` follows.
    pub shared_flags: u16,
    /// `Script::id`, a small integer.
    pub script_id: u16,
    /// `Map::instance_type`, a `u16`.
    pub map_type: u16,
    /// `Map::instance_type` of a `SharedFunctionInfo`.
    pub shared_type: u16,
    /// `Map::instance_type` of a `Script`.
    pub script_type: u16,
    /// Zero.
    pub reserved: u16,
}
const _: () = assert!(size_of::<V8Layout>() == 64);

/// Value of [`crate::ProcEntry::v8`] in a process without V8.
pub const NO_V8: PoolRef = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ADDR_GUESSED, ADDR_METHOD, is_caller_guessed, java_method};

    #[test]
    fn functions_are_told_from_addresses() {
        let function = JsFunction {
            shared: 0x7fff_1234_5678,
            check: 0x1abc,
        };
        let address = function.to_address();
        assert_eq!(JsFunction::of(address), Some(function));
        assert_eq!(JsFunction::of(address | ADDR_EXACT), Some(function));
        assert_eq!(java_method(address), None);
        assert!(!is_caller_guessed(address));
        for other in [
            function.shared,
            function.shared | ADDR_EXACT,
            function.shared | ADDR_GUESSED,
            function.shared | ADDR_METHOD,
            ADDR_EXACT,
            // The vsyscall page.
            0xffff_ffff_ff60_0400,
            0x7fff_ffff_ff60_0400,
        ] {
            assert_eq!(JsFunction::of(other), None, "{other:#x}");
        }
    }

    #[test]
    fn every_check_comes_back() {
        for check in 0..0x2000 {
            let shared = 0x0000_2345_6788;
            let function = JsFunction { shared, check };
            assert_eq!(JsFunction::of(function.to_address()), Some(function));
        }
    }

    #[test]
    fn neighbours_have_other_checks() {
        for script in 0..200 {
            for literal in 1..100 {
                let own = js_check(script, literal);
                assert_ne!(own, js_check(script + 1, literal));
                assert_ne!(own, js_check(script, literal + 1));
            }
        }
    }
}
