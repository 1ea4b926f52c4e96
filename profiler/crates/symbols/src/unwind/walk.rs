//! Finishing a walk in user space.
//!
//! The kernel-side unwinder stops where a table is not resident or a process is
//! not known yet, and sends the stack's pages along. From there on this walk
//! goes on, by the same rules, over that copy.

use aiprof_common::{
    ADDR_EXACT, ADDR_METHOD, CFA_DEREF_RBP, CFA_DEREF_RSP, CFA_END, CFA_GO, CFA_NONE, CFA_PLT,
    CFA_RBP, CFA_RSP, CFA_SIGNAL, GO_INJECTED, MAX_WALKED_FRAMES, RBP_AT_CFA, RBP_AT_RBP,
    RBP_DERIVED, RBP_SAME, Rule,
};
use aiprof_model::wire::StopReason;
use std::ops::Range;

/// Registers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer register.
    pub rbp: u64,
    /// Whether `rip` is an interrupted instruction and not a return address.
    pub exact: bool,
}

/// What a walk needs to know of the process.
pub trait Target {
    /// The rule for an address; `Err` has the reason why there is none.
    ///
    /// # Errors
    /// `NoMapping` or `PageAbsent`.
    fn rule(&mut self, address: u64) -> Result<Rule, StopReason>;

    /// The 8 bytes of the stack at an address, if they were sent along.
    fn stack(&self, address: u64) -> Option<u64>;

    /// Whether an address is in the interpreter of Java's HotSpot.
    fn is_java_interpreter(&self, _address: u64) -> bool {
        false
    }

    /// Whether an address is where HotSpot's stub goes on that calls Java from C.
    fn is_java_call_stub(&self, _address: u64) -> bool {
        false
    }
}

/// Appends to `frames` the callers of its last frame, whose registers are
/// given. Returns why the walk ended; frames are marked as the kernel side does. `passed`
/// is given the number of each frame and the part of the stack that it has.
pub fn finish(
    target: &mut impl Target,
    mut registers: Registers,
    frames: &mut Vec<u64>,
    mut passed: impl FnMut(usize, Range<u64>),
) -> StopReason {
    // Whether unwind data, and not instructions, led to the current frame.
    let mut is_described = false;
    loop {
        let address = if registers.exact {
            registers.rip
        } else {
            registers.rip.wrapping_sub(1)
        };
        let rule = target.rule(address);
        if !registers.exact
            && is_described
            && let (Ok(rule), [_, .., last]) = (rule, frames.as_mut_slice())
            && begins_at(target, registers.rip, rule)
        {
            *last |= ADDR_EXACT;
            return StopReason::End;
        }
        is_described = rule.is_ok_and(|rule| rule.kind != CFA_NONE && rule.rbp & RBP_DERIVED == 0);
        if let (
            Ok(Rule {
                kind: CFA_SIGNAL, ..
            }),
            [_, .., last],
        ) = (&rule, frames.as_mut_slice())
        {
            // Entered by the kernel, not by a call: the address is exact.
            *last |= ADDR_EXACT;
        }
        let next = if target.is_java_interpreter(address) {
            interpreted(target, registers, frames)
        } else if target.is_java_call_stub(registers.rip) {
            let by_rbp = Rule {
                kind: CFA_RBP,
                cfa_off: 16,
                rbp: RBP_AT_CFA,
                rbp_off: -16,
            };
            caller(target, registers, by_rbp)
        } else {
            rule.and_then(|rule| caller(target, registers, rule))
        };
        let own = registers.rsp;
        registers = match next {
            Ok(caller) => caller,
            Err(stop) => return stop,
        };
        passed(frames.len().saturating_sub(1), own..registers.rsp);
        if frames.len() >= MAX_WALKED_FRAMES {
            return StopReason::TooDeep;
        }
        frames.push(registers.rip | if registers.exact { ADDR_EXACT } else { 0 });
    }
}

/// Whether a function begins at a return address: no call precedes it where the byte before has no
/// rule. The first function of a context returns there.
fn begins_at(target: &mut impl Target, address: u64, before: Rule) -> bool {
    let begins = |rule: Rule| rule.kind == CFA_END || rule.kind == CFA_RSP && rule.cfa_off == 8;
    before.kind == CFA_NONE && target.rule(address).is_ok_and(begins)
}

/// Registers of the caller of a frame of HotSpot's interpreter, which becomes its method: see
/// [`aiprof_common::ADDR_METHOD`].
fn interpreted(
    target: &impl Target,
    r: Registers,
    frames: &mut [u64],
) -> Result<Registers, StopReason> {
    let read = |address: u64| target.stack(address).ok_or(StopReason::Read);
    let method = read(r.rbp.wrapping_sub(24))?;
    let rsp = read(r.rbp.wrapping_sub(8))?;
    let caller = Registers {
        rip: read(r.rbp.wrapping_add(8))?,
        rsp,
        rbp: read(r.rbp)?,
        exact: false,
    };
    if r.rbp < r.rsp || rsp <= r.rbp || caller.rip == 0 {
        return Err(StopReason::FramePointer);
    }
    if let Some(last) = frames.last_mut()
        && method != 0
        && method & 7 == 0
        && method >> 47 == 0
    {
        *last = *last & ADDR_EXACT | method | ADDR_METHOD;
    }
    Ok(caller)
}

/// Registers of the caller of a frame.
fn caller(target: &impl Target, r: Registers, rule: Rule) -> Result<Registers, StopReason> {
    let read = |address: u64| target.stack(address).ok_or(StopReason::Read);
    let offset = i64::from(rule.cfa_off) as u64;
    let cfa = match rule.kind {
        CFA_END => return Err(StopReason::End),
        // A frame pointer would have to be confirmed by the code before the return
        // address, which did not come along.
        CFA_NONE => return Err(StopReason::FramePointer),
        CFA_RSP => r.rsp.wrapping_add(offset),
        CFA_GO if rule.rbp == GO_INJECTED => r.rsp.wrapping_add(offset),
        // What leads to the other stack is not on this one, and did not come along.
        CFA_GO => return Err(StopReason::Read),
        CFA_RBP => r.rbp.wrapping_add(offset),
        CFA_DEREF_RBP | CFA_DEREF_RSP => {
            let from = [r.rsp, r.rbp][usize::from(rule.kind == CFA_DEREF_RBP)];
            let (offset, add) = rule.dereferenced();
            read(from.wrapping_add(offset))?.wrapping_add(add)
        }
        CFA_PLT => r
            .rsp
            .wrapping_add(if r.rip & 15 >= offset { 16 } else { 8 }),
        CFA_SIGNAL => {
            // struct sigcontext_64: rbp, rsp, rip at 120, 160, 168 of the ucontext.
            let context = r.rsp.wrapping_add(offset);
            return Ok(Registers {
                rip: read(context.wrapping_add(168))?,
                rsp: read(context.wrapping_add(160))?,
                rbp: read(context.wrapping_add(120))?,
                exact: true,
            });
        }
        _ => return Err(StopReason::Unsupported),
    };
    if cfa <= r.rsp {
        return Err(StopReason::NoProgress);
    }
    let rbp = match rule.rbp & !RBP_DERIVED {
        RBP_AT_CFA => read(cfa.wrapping_add(i64::from(rule.rbp_off) as u64))?,
        RBP_AT_RBP => read(r.rbp.wrapping_add(i64::from(rule.rbp_off) as u64))?,
        RBP_SAME => r.rbp,
        // No stack address: a frame that needs it ends the walk.
        _ => 1,
    };
    let rip = read(cfa.wrapping_sub(8))?;
    if rip == 0 {
        return Err(match rule.rbp & RBP_DERIVED {
            0 => StopReason::End,
            _ => StopReason::FramePointer,
        });
    }
    Ok(Registers {
        rip,
        rsp: cfa,
        rbp,
        exact: rule.kind == CFA_GO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Code from 0x1000 on with one rule a 0x100 bytes, and a stack by address.
    struct Toy {
        rules: Vec<Rule>,
        stack: BTreeMap<u64, u64>,
    }

    impl Target for Toy {
        fn rule(&mut self, address: u64) -> Result<Rule, StopReason> {
            let index = address.checked_sub(0x1000).ok_or(StopReason::NoMapping)? / 0x100;
            self.rules
                .get(index as usize)
                .copied()
                .ok_or(StopReason::NoMapping)
        }

        fn stack(&self, address: u64) -> Option<u64> {
            self.stack.get(&address).copied()
        }
    }

    fn rule(kind: u8, cfa_off: i32) -> Rule {
        Rule {
            kind,
            cfa_off,
            ..Rule::default()
        }
    }

    #[test]
    fn follows_rules_through_a_signal_frame_to_the_end() {
        let saves_rbp = Rule {
            rbp: RBP_AT_CFA,
            rbp_off: -16,
            ..rule(CFA_RSP, 32)
        };
        let rules = vec![
            saves_rbp,
            rule(CFA_SIGNAL, 0),
            rule(CFA_RBP, 16),
            rule(CFA_END, 0),
        ];
        let stack = BTreeMap::from([
            (0x8018, 0x1101), // return address of the first frame: the signal restorer
            (0x8010, 0x7777), // its saved rbp
            (0x8020 + 168, 0x1200),
            (0x8020 + 160, 0x9000),
            (0x8020 + 120, 0x9100),
            (0x9108, 0x1301),
        ]);
        let mut toy = Toy { rules, stack };
        let start = Registers {
            rip: 0x1000,
            rsp: 0x8000,
            rbp: 5,
            exact: true,
        };
        let mut frames = vec![0x1000];
        assert_eq!(
            finish(&mut toy, start, &mut frames, |_, _| {}),
            StopReason::End
        );
        assert_eq!(
            frames,
            [0x1000, 0x1101 | ADDR_EXACT, 0x1200 | ADDR_EXACT, 0x1301]
        );
    }

    /// From native code through two interpreted methods to native code.
    #[test]
    fn methods_stand_for_the_interpreter() {
        struct Java(Toy);
        impl Target for Java {
            fn rule(&mut self, address: u64) -> Result<Rule, StopReason> {
                self.0.rule(address)
            }
            fn stack(&self, address: u64) -> Option<u64> {
                self.0.stack(address)
            }
            fn is_java_interpreter(&self, address: u64) -> bool {
                address >> 8 == 0x50
            }
            fn is_java_call_stub(&self, address: u64) -> bool {
                address == 0x6000
            }
        }
        let rules = vec![rule(CFA_RSP, 16), rule(CFA_END, 0)];
        let frame = |rbp: u64, method, sender, caller, to| {
            [
                (rbp - 24, method),
                (rbp - 8, sender),
                (rbp, caller),
                (rbp + 8, to),
            ]
        };
        let mut stack = BTreeMap::from([(0x8008, 0x5010)]);
        stack.extend(frame(0x8040, 0x7000, 0x8060, 0x8090, 0x5020));
        stack.extend(frame(0x8090, 0x7100, 0x80b0, 0x9000, 0x6000));
        stack.extend([(0x9000, 0x9100), (0x9008, 0x1101)]);
        let start = Registers {
            rip: 0x1000,
            rsp: 0x8000,
            rbp: 0x8040,
            exact: true,
        };
        let mut java = Java(Toy { rules, stack });
        let mut frames = vec![0x1000];
        let stop = finish(&mut java, start, &mut frames, |_, _| {});
        assert_eq!(stop, StopReason::End);
        assert_eq!(
            frames,
            [
                0x1000,
                0x7000 | ADDR_METHOD,
                0x7100 | ADDR_METHOD,
                0x6000,
                0x1101
            ]
        );
        // A frame pointer that leads nowhere is none.
        java.0.stack.insert(0x8038, 0x8030);
        let mut frames = vec![0x1000];
        let stop = finish(&mut java, start, &mut frames, |_, _| {});
        assert_eq!(stop, StopReason::FramePointer);
        assert_eq!(frames, [0x1000, 0x5010]);
    }

    #[test]
    fn zero_is_no_end_by_instructions() {
        let start = Registers {
            rip: 0x1000,
            rsp: 0x8000,
            rbp: 5,
            exact: true,
        };
        let by_code = Rule {
            rbp: RBP_DERIVED,
            ..rule(CFA_RSP, 16)
        };
        for (rule, stop) in [
            (rule(CFA_RSP, 16), StopReason::End),
            (by_code, StopReason::FramePointer),
        ] {
            let mut toy = Toy {
                rules: vec![rule],
                stack: BTreeMap::from([(0x8008, 0)]),
            };
            assert_eq!(finish(&mut toy, start, &mut vec![0x1000], |_, _| {}), stop);
        }
    }

    /// The first function of a context returns to the start of another one.
    #[test]
    fn ends_where_no_call_has_led() {
        let start = Registers {
            rip: 0x1000,
            rsp: 0x8000,
            rbp: 5,
            exact: true,
        };
        let mut toy = Toy {
            rules: vec![rule(CFA_RSP, 16), rule(CFA_NONE, 0), rule(CFA_RSP, 8)],
            stack: BTreeMap::from([(0x8008, 0x1200)]),
        };
        let mut frames = vec![0x1000];
        let stop = finish(&mut toy, start, &mut frames, |_, _| {});
        assert_eq!(stop, StopReason::End);
        assert_eq!(frames, [0x1000, 0x1200 | ADDR_EXACT]);
        // In the midst of a function a call has.
        toy.stack.insert(0x8008, 0x1180);
        let stop = finish(&mut toy, start, &mut vec![0x1000], |_, _| {});
        assert_eq!(stop, StopReason::FramePointer);
    }

    #[test]
    fn ends_where_the_copy_ends_or_the_stack_does_not_grow() {
        let start = Registers {
            rip: 0x1000,
            rsp: 0x8000,
            rbp: 5,
            exact: true,
        };
        let mut toy = Toy {
            rules: vec![rule(CFA_RSP, 32)],
            stack: BTreeMap::new(),
        };
        assert_eq!(
            finish(&mut toy, start, &mut vec![0x1000], |_, _| {}),
            StopReason::Read
        );
        toy.rules = vec![rule(CFA_RSP, -8)];
        assert_eq!(
            finish(&mut toy, start, &mut vec![0x1000], |_, _| {}),
            StopReason::NoProgress
        );
        toy.rules = vec![rule(CFA_NONE, 0)];
        assert_eq!(
            finish(&mut toy, start, &mut vec![0x1000], |_, _| {}),
            StopReason::FramePointer
        );
        toy.rules = vec![];
        assert_eq!(
            finish(&mut toy, start, &mut vec![0x1000], |_, _| {}),
            StopReason::NoMapping
        );
    }
}
