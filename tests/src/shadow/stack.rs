//! A shadow stack: where each call of a thread will return to. It follows the executed
//! instructions, and uses neither the contents of the stack nor unwind data.

use aiprof_common::ADDR_EXACT;

/// Stack pointers further apart than this lie on different stacks.
const ONE_STACK: u64 = 16 << 20;
/// How far the stack pointer is moved at most while a thread is on another stack, but
/// where its stack was copied to another place meanwhile.
const SAME_PLACE: u64 = 256;

/// A call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    /// Where the return address is on the stack.
    slot: u64,
    /// The return address, marked as aiprof marks it.
    address: u64,
    /// It is never returned to, and what called has nothing to do with what runs.
    last: bool,
}

/// The calls on one stack.
#[derive(Clone, Debug, Default)]
struct Calls {
    open: Vec<Call>,
    /// The stack pointer when the thread went on to another stack.
    left: u64,
    /// Whose stack it is, and where that ends, if known.
    owner: Option<(u64, u64)>,
}

/// The shadow stack of a thread.
#[derive(Clone, Debug)]
pub(super) struct Shadow {
    /// The stack in use last.
    stacks: Vec<Calls>,
    rsp: u64,
    /// The first stack is never returned to once it is left, as Go's runtime does.
    leaves_first: bool,
    /// The stack that came after it is in use now, and nothing is known of it yet.
    begins: bool,
    /// What is known of the stack that the thread goes on to.
    next: Option<Arrival>,
    /// The thread has gone on to a stack of which nothing is known.
    is_lost: bool,
}

/// The stack that a thread goes on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// See [`Calls::owner`].
    pub(super) owner: Option<(u64, u64)>,
    /// It calls there, and does not return from a call.
    pub(super) is_call: bool,
}

impl Shadow {
    /// The shadow stack of a thread at its first instruction.
    #[must_use]
    pub(super) fn new(rsp: u64, leaves_first: bool) -> Self {
        Self {
            stacks: vec![Calls::default()],
            rsp,
            leaves_first,
            begins: false,
            next: None,
            is_lost: false,
        }
    }

    /// Whether it is not known any more what has called what: the thread runs another
    /// goroutine, which has run elsewhere before.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// If the stack pointer is on another stack next, this is known of it.
    pub(super) fn arrives(&mut self, at: Arrival) {
        self.next = Some(at);
    }

    /// Whether the program has just left its first stack.
    pub(super) fn begins(&mut self) -> bool {
        std::mem::take(&mut self.begins)
    }

    /// What the first function of a stack returns to, which no call has put there.
    pub(super) fn return_of_first(&mut self, address: u64) {
        let slot = self.rsp;
        self.push(slot, address, false);
    }

    /// The stack pointer has another value: what was called from above it is over.
    pub(super) fn moved(&mut self, rsp: u64) {
        if rsp.abs_diff(self.rsp) > ONE_STACK {
            self.change_stack(rsp);
        }
        self.rsp = rsp;
        if let Some(top) = self.stacks.last_mut() {
            while top.open.last().is_some_and(|call| call.slot < rsp) {
                top.open.pop();
            }
        }
    }

    fn change_stack(&mut self, rsp: u64) {
        let from = self.rsp;
        if let Some(top) = self.stacks.last_mut() {
            top.left = from;
        }
        let known = self.next.take();
        let next = known.and_then(|at| at.owner);
        let below = self.stacks.len().checked_sub(2);
        let below = below.filter(|_| known.is_none_or(|at| !at.is_call));
        let mut back = below.and_then(|at| self.stacks.get_mut(at));
        if let Some(stack) = &mut back {
            let owners = stack.owner.zip(next);
            self.is_lost |= owners.is_some_and(|((before, _), (now, _))| before != now);
            stack.follow_owner(next);
        }
        match back.filter(|stack| rsp.abs_diff(stack.left) <= ONE_STACK) {
            Some(stack) => {
                if rsp.abs_diff(stack.left) > SAME_PLACE {
                    stack.follow_copy(rsp);
                }
                self.stacks.pop();
            }
            None if self.leaves_first => {
                self.leaves_first = false;
                self.begins = true;
                self.stacks = vec![Calls::of(next)];
            }
            None => self.stacks.push(Calls::of(next)),
        }
    }

    /// A call was made: its return address is where the stack pointer points now.
    pub(super) fn called(&mut self, rsp: u64, address: u64) {
        self.moved(rsp);
        self.push(rsp, address, false);
    }

    /// Likewise, by what is never returned to, such as a scheduler's start.
    pub(super) fn called_last(&mut self, rsp: u64, address: u64) {
        self.moved(rsp);
        self.push(rsp, address, true);
    }

    /// The stack in use was copied to another place, `by` bytes further up.
    pub(super) fn copied(&mut self, by: u64) {
        self.rsp = self.rsp.wrapping_add(by);
        if let Some(top) = self.stacks.last_mut() {
            top.move_by(by);
        }
    }

    /// A signal's handler was entered, with `restorer` for its return address.
    pub(super) fn signalled(&mut self, interrupted: u64, rsp: u64, restorer: u64) {
        self.moved(rsp);
        self.push(rsp.wrapping_add(8), interrupted | ADDR_EXACT, false);
        self.push(rsp, restorer | ADDR_EXACT, false);
    }

    fn push(&mut self, slot: u64, address: u64, last: bool) {
        if let Some(top) = self.stacks.last_mut() {
            top.open.push(Call {
                slot,
                address,
                last,
            });
        }
    }

    /// The number of open calls.
    #[must_use]
    pub(super) fn depth(&self) -> usize {
        self.stacks.iter().map(|stack| stack.open.len()).sum()
    }

    /// The slot of the innermost call.
    #[must_use]
    pub(super) fn last_slot(&self) -> Option<u64> {
        Some(self.stacks.last()?.open.last()?.slot)
    }

    /// The return addresses, innermost first.
    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> {
        let stacks = self.stacks.iter().rev();
        let calls = stacks.flat_map(|stack| stack.open.iter().rev());
        let mut over = false;
        calls
            .take_while(move |call| !std::mem::replace(&mut over, call.last))
            .map(|call| call.address)
    }
}

impl Calls {
    fn of(owner: Option<(u64, u64)>) -> Self {
        Self {
            owner,
            ..Self::default()
        }
    }

    fn move_by(&mut self, by: u64) {
        self.left = self.left.wrapping_add(by);
        if let Some((_, end)) = &mut self.owner {
            *end = end.wrapping_add(by);
        }
        for call in &mut self.open {
            call.slot = call.slot.wrapping_add(by);
        }
    }

    /// The thread comes back to the stack: it may be at another place by now.
    fn follow_owner(&mut self, now: Option<(u64, u64)>) {
        if let (Some((owner, before)), Some((now, after))) = (self.owner, now)
            && owner == now
        {
            self.move_by(after.wrapping_sub(before));
        }
    }

    /// The stack was copied: the function that had it done begins anew.
    fn follow_copy(&mut self, rsp: u64) {
        self.open.pop();
        if let Some(last) = self.open.last().copied() {
            for call in &mut self.open {
                call.slot = call.slot.wrapping_sub(last.slot).wrapping_add(rsp);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(shadow: &Shadow) -> Vec<u64> {
        shadow.addresses().collect()
    }

    #[test]
    fn calls_returns_and_jumps_out_of_many_frames() {
        let mut shadow = Shadow::new(0x9000, false);
        for (rsp, address) in [(0x8ff8, 1), (0x8f00, 2), (0x8e00, 3)] {
            shadow.called(rsp, address);
        }
        assert_eq!(addresses(&shadow), [3, 2, 1]);
        shadow.moved(0x8d00);
        assert_eq!(addresses(&shadow), [3, 2, 1]);
        shadow.moved(0x8e08);
        assert_eq!(addresses(&shadow), [2, 1]);
        // longjmp
        shadow.moved(0x9000);
        assert_eq!(shadow.depth(), 0);
    }

    #[test]
    fn a_signal_on_the_same_stack_and_on_its_own() {
        for stack in [0x8000, 0x7f00_0000_0000] {
            let mut shadow = Shadow::new(0x9000, false);
            shadow.called(0x8ff8, 1);
            shadow.signalled(0x500, stack, 7);
            shadow.called(stack - 0x100, 8);
            assert_eq!(
                addresses(&shadow),
                [8, 7 | ADDR_EXACT, 0x500 | ADDR_EXACT, 1]
            );
            shadow.moved(stack + 8);
            assert_eq!(addresses(&shadow), [0x500 | ADDR_EXACT, 1]);
            shadow.moved(0x8ff0);
            assert_eq!(addresses(&shadow), [1]);
        }
    }

    #[test]
    fn a_goroutine_that_calls_on_the_system_stack_and_grows() {
        let (system, own) = (0x7fff_0000_0000, 0xc0_0000_0000);
        let mut shadow = Shadow::new(system, true);
        shadow.called(system - 0x100, 1);
        assert!(!shadow.begins());
        shadow.moved(own);
        assert!(shadow.begins() && !shadow.begins());
        assert_eq!(shadow.depth(), 0);
        shadow.called(own - 0x10, 2);
        shadow.called(own - 0x20, 3);
        // The scheduler's stack.
        let mut scheduler = shadow.clone();
        scheduler.moved(system);
        scheduler.called_last(system - 8, 4);
        scheduler.called(system - 16, 5);
        assert_eq!(addresses(&scheduler), [5, 4]);
        scheduler.moved(own - 0x20);
        assert_eq!(addresses(&scheduler), [3, 2]);
        // A copied stack.
        let mut copied = shadow.clone();
        copied.copied(0x1000);
        copied.moved(own + 0x1000 - 0x18);
        assert_eq!(addresses(&copied), [2]);
        // Likewise, while it was not in use.
        let mut copied = Shadow::new(system, true);
        let at = |end| Arrival {
            owner: Some((7, end)),
            is_call: false,
        };
        copied.arrives(at(own));
        copied.moved(own - 8);
        copied.called(own - 0x10, 2);
        copied.called(own - 0x18, 3);
        copied.moved(system);
        copied.arrives(at(own + 0x8000));
        copied.moved(own + 0x8000 - 0x18);
        assert_eq!(addresses(&copied), [3, 2]);
        copied.moved(own + 0x8000 - 0x10);
        assert_eq!(addresses(&copied), [2]);
        // C's stack, called back from there, another stack there, and back from all that.
        let mut back = shadow.clone();
        let mut go = |to: u64, is_call: bool| {
            back.arrives(Arrival {
                owner: None,
                is_call,
            });
            back.moved(to);
            match is_call {
                true => back.called(to - 8, to),
                false => back.moved(to + 8),
            }
            addresses(&back)
        };
        let (first, second, third) = (system, own - 0x100, system - 0x100);
        go(first, true);
        go(second, true);
        assert_eq!(go(third, true), [third, second, first, 3, 2]);
        assert_eq!(go(second - 8, false), [first, 3, 2]);
        assert_eq!(go(first - 8, false), [3, 2]);
        // Another stack, and back.
        shadow.moved(system);
        shadow.called(system - 8, 4);
        assert_eq!(addresses(&shadow), [4, 3, 2]);
        shadow.moved(own - 0x20);
        assert_eq!(addresses(&shadow), [3, 2]);
        // The stack is copied while it is not in use; the last call begins anew.
        shadow.called(own - 0x28, 5);
        shadow.moved(system);
        shadow.moved(own + 0x8000 - 0x20);
        assert_eq!(addresses(&shadow), [3, 2]);
        shadow.moved(own + 0x8000 - 0x18);
        assert_eq!(addresses(&shadow), [2]);
    }
}
