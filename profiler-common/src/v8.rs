//! The frames of JavaScript's V8: how the programs find the functions in them.
//!
//! Frames of JavaScript are chained by rbp, whichever compiler made their code, and hold
//! the function that they run (a `JSFunction`). That moves whenever memory is tidied up.
//! What does not, or hardly ever, is what all closures of one function share (the
//! `SharedFunctionInfo`): the walk records its address in place of the frame's, with a
//! few bits by which it is known again, see [`ADDR_JS`].

use crate::{ADDR_EXACT, PoolRef};

/// Marks a user address that is no code, but the `SharedFunctionInfo` that a frame of V8
/// runs. Bits 57 to 59, 61 and 62 are zero then.
pub const ADDR_JS: u64 = 1 << 60;

/// Lower bits of an address that are always zero, for objects are aligned.
const ALIGNED: u64 = 7;
/// User addresses are below.
const USER_BITS: u32 = 47;
/// Bits above [`USER_BITS`] that are free.
const FREE: u64 = 0x3ff;

/// A function of JavaScript, as a sample names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JsFunction {
    /// Where its `SharedFunctionInfo` was when the sample was taken.
    pub shared: u64,
    /// What tells it from another that is there later: [`js_check`].
    pub check: u16,
}

impl JsFunction {
    /// As an address of a sample.
    #[inline(always)]
    #[must_use]
    pub const fn to_address(self) -> u64 {
        let check = self.check as u64;
        let shared = self.shared & ((1 << USER_BITS) - 1) & !ALIGNED;
        ADDR_JS | shared | check & ALIGNED | (check >> 3 & FREE) << USER_BITS
    }

    /// The function that an address of a sample stands for; `None`: it stands for none.
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

/// 13 bits of what a function is: the number of its script, which is given once, and its
/// own number in there (`Script::id`, `SharedFunctionInfo::function_literal_id`).
/// Functions with neighbouring numbers differ.
#[inline(always)]
#[must_use]
pub const fn js_check(script: u32, literal: u32) -> u16 {
    (script.wrapping_mul(613).wrapping_add(literal) & 0x1fff) as u16
}

/// Most places where a process has the code of V8 that interprets.
pub const MAX_V8_INTERPRETERS: usize = 2;

/// A block of the pool: where a V8 keeps what names its functions. Offsets are in bytes
/// within the object that they are named after; names are V8's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V8Layout {
    /// Identity of this incarnation of the block, never 0.
    pub owner: u32,
    /// 1: frames of generated code are functions too; 0: something else names these.
    pub generated: u32,
    /// The first addresses of the code that interprets
    /// (`Builtins_InterpreterEntryTrampoline`): in the file as it is mapped, and where V8
    /// has mapped it again, near the code that it generates; 0: there is none.
    pub interpreters: [u64; MAX_V8_INTERPRETERS],
    /// Bytes of it.
    pub interpreter_size: u64,
    /// Bytes of V8's other functions of this kind in front of it, and of all together
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
    /// That of a `SharedFunctionInfo`.
    pub shared_type: u16,
    /// That of a `Script`.
    pub script_type: u16,
    /// Zero.
    pub reserved: u16,
}
const _: () = assert!(size_of::<V8Layout>() == 64);

/// No V8: what [`crate::ProcEntry::v8`] is then.
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
