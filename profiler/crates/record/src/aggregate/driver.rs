//! The frames of the driver between a launch and its device.
//!
//! The stack of an ioctl holds all of the thread: the program's frames, the runtime's
//! function, and below it the driver's own and the kernel's. The program's frames are those
//! of the stack of the function's call, taken as the function was entered. What the ioctl's
//! stack has below them is the driver's.

use super::{Code, stacks::KnownStacks};
use crate::correlate::{DriverCalls, TrackedLaunch};
use aiprof_model::profile::{FrameKind, Location, LocationId, ProfileBuilder};
use std::rc::Rc;

/// What stands between the function that launched and the device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DriverFrames {
    /// The function that submitted the launch, if that is not the one that launched.
    pub(super) function: Option<Rc<str>>,
    /// The frames below that function, leaf first; its own may be the last.
    pub(super) codes: Rc<[Code]>,
}

/// The host's part of a launch's stack, root first, as it is made.
#[derive(Default)]
pub(super) struct HostStack {
    pub(super) locations: Vec<LocationId>,
    /// [`Stack::driver`](aiprof_model::profile::Stack::driver).
    pub(super) driver: u32,
    /// The function that was added last, if nothing was since.
    function: Option<String>,
    /// The function that launched is there, and the device is not.
    is_driver: bool,
}

impl HostStack {
    /// Adds a frame.
    pub(super) fn push(&mut self, builder: &mut ProfileBuilder, location: LocationId) {
        // A function is there by its name; of its own frame only what is inlined is new.
        let location = match self.function.take() {
            Some(name) => builder.below(location, &name),
            None => Some(location),
        };
        self.locations.extend(location);
        self.driver += u32::from(self.is_driver && location.is_some());
    }

    /// Adds a probed function by its name.
    pub(super) fn function(&mut self, builder: &mut ProfileBuilder, name: &str) {
        self.function = None;
        let location = text(builder, name, FrameKind::Native);
        self.push(builder, location);
        self.function = Some(name.to_owned());
        self.is_driver = true;
    }

    /// What follows is the device's.
    pub(super) fn end(&mut self) {
        self.function = None;
        self.is_driver = false;
    }
}

/// A location that is only a name.
pub(super) fn text(builder: &mut ProfileBuilder, name: &str, kind: FrameKind) -> LocationId {
    let frames = vec![builder.frame(name, kind, None)];
    builder.location(Location {
        binary: None,
        address: 0,
        frames,
    })
}

/// Stacks of a call are not known, or do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unknown;

/// The driver's frames of a launch; `None`: no ioctl handed it over. Where a graph did
/// without one, the function that executed it.
pub(super) fn frames(
    stacks: &KnownStacks,
    launch: &TrackedLaunch,
) -> Result<Option<DriverFrames>, Unknown> {
    let Some(calls) = launch.driver.as_deref() else {
        return Ok(launch.executed.as_ref().map(|executed| DriverFrames {
            function: Some(executed.function.clone()),
            codes: Rc::from([]),
        }));
    };
    let codes = below(stacks, calls).ok_or(Unknown)?;
    Ok(Some(DriverFrames {
        function: (!calls.is_own).then(|| calls.function.clone()),
        codes: codes.into(),
    }))
}

/// The frames below a call that all its ioctls have, leaf first: which of them handed over
/// which of its launches is not known.
fn below(stacks: &KnownStacks, calls: &DriverCalls) -> Option<Vec<Code>> {
    let call = &stacks.get(&calls.stack)?.codes;
    let mut common: Option<Vec<Code>> = None;
    for ioctl in &calls.ioctls {
        let ioctl = below_call(call, &stacks.get(ioctl)?.codes)?;
        common = Some(match common {
            None => ioctl.to_vec(),
            Some(mut common) => {
                let pairs = common.iter().rev().zip(ioctl.iter().rev());
                let same = pairs.take_while(|(a, b)| a == b).count();
                common.drain(..common.len() - same);
                common
            }
        });
    }
    common
}

/// The part of an ioctl's stack below the caller of a function. `call` is the stack at the
/// function's entry; both are leaf first.
fn below_call<'a>(call: &[Code], ioctl: &'a [Code]) -> Option<&'a [Code]> {
    let callers = call.get(1..)?;
    let first = callers.first().filter(|code| code.cut().is_none())?;
    let found = ioctl.iter().enumerate().filter(|(_, code)| *code == first);
    let mut positions = found.map(|(at, _)| at);
    let at = positions.find(|&at| ioctl.get(at..).is_some_and(|rest| is_same(callers, rest)))?;
    ioctl.get(..at)
}

/// Whether two walks up the same stack agree where both have frames.
fn is_same(one: &[Code], other: &[Code]) -> bool {
    let is_cut = |codes: &[Code], at: usize| codes.get(at).is_some_and(|c| c.cut().is_some());
    let pairs = one.iter().zip(other);
    let same = pairs.take_while(|(a, b)| a == b).count();
    let ended = same == one.len() && same == other.len();
    ended || is_cut(one, same) || is_cut(other, same)
}

#[cfg(test)]
mod tests {
    use super::super::stacks::KnownStack;
    use super::*;
    use aiprof_model::{process::Runtime, wire::StopReason};

    const CUT: Code = Code::Cut(StopReason::TooDeep);

    fn user(offset: u64) -> Code {
        Code::File { file: 1, offset }
    }

    fn kernel(address: u64) -> Code {
        Code::Kernel { address }
    }

    fn users<const N: usize>(offsets: [u64; N]) -> Vec<Code> {
        offsets.map(user).to_vec()
    }

    fn with(first: &[Code], rest: &[Code]) -> Vec<Code> {
        [first, rest].concat()
    }

    #[test]
    fn the_driver_is_what_is_below_the_caller() {
        let call = users([10, 2, 1]);
        let ioctl = with(&[kernel(9), kernel(8)], &users([31, 30, 11, 2, 1]));
        let below = below_call(&call, &ioctl).unwrap();
        assert_eq!(below, with(&[kernel(9), kernel(8)], &users([31, 30, 11])));
        // A function that jumped away has no frame of its own.
        assert_eq!(below_call(&call, &users([2, 1])).unwrap(), []);
    }

    #[test]
    fn a_path_that_calls_itself_is_taken_at_its_innermost_turn() {
        let call = users([10, 2, 7, 30, 11, 2, 1]);
        let ioctl = users([31, 12, 2, 7, 30, 11, 2, 1]);
        assert_eq!(below_call(&call, &ioctl).unwrap(), users([31, 12]));
        // The outer turn, whose call made another one before it came to its own ioctl.
        let call = users([10, 2, 1]);
        let ioctl = users([31, 2, 7, 30, 11, 2, 1]);
        assert_eq!(
            below_call(&call, &ioctl).unwrap(),
            users([31, 2, 7, 30, 11])
        );
    }

    #[test]
    fn stacks_of_other_callers_do_not_fit() {
        let call = users([10, 2, 1]);
        for ioctl in [
            users([31, 11, 3, 1]),
            users([31, 11, 2, 4]),
            users([31, 11, 2]),
            users([31, 11, 2, 1, 1]),
            users([]),
        ] {
            assert_eq!(below_call(&call, &ioctl), None, "{ioctl:?}");
        }
        assert_eq!(below_call(&[], &users([1])), None);
        assert_eq!(below_call(&users([10]), &users([10])), None);
        assert_eq!(below_call(&[user(10), CUT], &[user(11), CUT]), None);
    }

    #[test]
    fn walks_that_ended_early_agree_as_far_as_they_went() {
        let call = users([10, 3, 2, 1]);
        let deep = with(&users([32, 31, 30, 11, 3, 2]), &[CUT]);
        assert_eq!(below_call(&call, &deep).unwrap(), users([32, 31, 30, 11]));
        let short = with(
            &users([10, 3]),
            &[Code::CutIn(StopReason::FramePointer, Runtime::Java)],
        );
        let ioctl = users([31, 11, 3, 2, 1]);
        assert_eq!(below_call(&short, &ioctl).unwrap(), users([31, 11]));
        // Cut before it came to the caller.
        let cut = with(&users([31, 30]), &[CUT]);
        assert_eq!(below_call(&call, &cut), None);
    }

    #[test]
    fn of_several_ioctls_only_what_they_share_is_known() {
        let stacks: KnownStacks = [
            (1, users([10, 2, 1])),
            (2, with(&[kernel(9)], &users([40, 31, 11, 2, 1]))),
            (3, with(&[kernel(9)], &users([40, 32, 11, 2, 1]))),
        ]
        .into_iter()
        .map(|(id, codes)| {
            let codes: Rc<[Code]> = codes.into();
            let (cgroup, thread) = (0, "".into());
            let known = KnownStack {
                codes,
                cgroup,
                thread,
            };
            (id, known)
        })
        .collect();
        let calls = |ioctls: &[u64]| DriverCalls {
            is_own: true,
            function: "f".into(),
            stack: 1,
            ioctls: ioctls.to_vec(),
        };
        let one = with(&[kernel(9)], &users([40, 31, 11]));
        assert_eq!(below(&stacks, &calls(&[2])).unwrap(), one);
        assert_eq!(below(&stacks, &calls(&[2, 3])).unwrap(), users([11]));
        assert_eq!(below(&stacks, &calls(&[2, 0])), None, "left out");
        assert_eq!(below(&stacks, &calls(&[4])), None, "lost");
    }
}
