//! A call that is not over yet.

use super::{
    FinishedCall, KernelName, LaunchingCall, data::Image, driver_calls::Ioctls,
    handles::ModuleImage, meaning::ProbeMeaning,
};
use aiprof_common::{CALL_TAIL, MAX_VALUES};
use aiprof_model::wire::Call;
use std::rc::Rc;

/// Bits of all value slots.
const ALL_SLOTS: u16 = (1 << MAX_VALUES) - 1;

/// A call between its entry and its end.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub(super) meaning: Rc<ProbeMeaning>,
    /// What will be reported about it.
    pub(super) call: FinishedCall,
    /// Where its return address is; 0 for an ioctl.
    pub(super) sp: u64,
    /// When the call began that the kernel side has for it: its own begin, or that of the
    /// call which went on in it and returns with it.
    pub(super) since_ns: u64,
    /// Drafts of its thread from here on were made inside of it.
    pub(super) first_pending: usize,
    /// Its own work, unless a part of it does it.
    pub(super) own: Own,
    /// What it or a part of it put on a list last.
    pub(super) recorded: Option<OnList>,
    /// Text with the role of a name.
    pub(super) name: Option<Rc<str>>,
    /// Device code on its way.
    pub(super) image: Option<Box<Image>>,
    /// Device code that a part of it had, where its own is not known.
    pub(super) inner_image: Option<Rc<ModuleImage>>,
    /// How far its lists were executed.
    pub(super) submitted: Submitted,
    /// What it changes has been applied.
    pub(super) applied: bool,
    /// The group size that it replaced.
    pub(super) group_before: Option<[u32; 3]>,
    /// That it ends a kernel was reported at its entry.
    pub(super) is_end_reported: bool,
    /// Its exit was not seen: what it gave was read later, where it was to put it.
    pub(super) is_assumed: bool,
    /// Ioctls inside of it that handed work to a driver.
    pub(super) ioctls: Ioctls,
}

/// Work that was put on a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnList {
    pub(super) list: u64,
    /// The call that did, innermost.
    pub(super) maker: u64,
    /// It is known to have succeeded.
    pub(super) confirmed: bool,
}

/// Where a call's own work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// Among the pending launches, at `first_pending`.
    pub(super) is_pending: bool,
    /// On a list.
    pub(super) list: Option<u64>,
}

impl Own {
    pub(super) fn is_some(self) -> bool {
        self.is_pending || self.list.is_some()
    }
}

/// How far a submitting call's lists were executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Submitted {
    /// They have not arrived.
    #[default]
    No,
    /// None of them was known.
    Unknown,
    /// At least one was known.
    Known,
}

impl OpenCall {
    pub(super) fn new(call: &Call, known: &Rc<ProbeMeaning>, id: u64) -> Self {
        Self {
            meaning: known.clone(),
            call: FinishedCall {
                id,
                library: call.library,
                pid: call.pid,
                tid: call.tid,
                start_ns: call.time_ns,
                end_before_ns: call.time_ns,
                values: call.values,
                unread: unread(call, known),
                flags: call.flags,
                stack: call.stack,
                ..FinishedCall::of(known.probe.clone())
            },
            sp: call.sp,
            since_ns: since(call),
            first_pending: 0,
            own: Own::default(),
            recorded: None,
            name: None,
            image: None,
            inner_image: None,
            submitted: Submitted::No,
            applied: false,
            group_before: None,
            is_end_reported: false,
            is_assumed: false,
            ioctls: Ioctls::default(),
        }
    }

    /// Makes it what [`OpenCall::new`] gives, in the memory that it has.
    pub(super) fn renew(&mut self, call: &Call, known: &Rc<ProbeMeaning>, id: u64) {
        let mut data = std::mem::take(&mut self.call.data);
        let mut inner = std::mem::take(&mut self.call.nesting.inner);
        let mut ioctls = std::mem::take(&mut self.ioctls);
        data.clear();
        inner.clear();
        ioctls.clear();
        *self = Self::new(call, known, id);
        self.call.data = data;
        self.call.nesting.inner = inner;
        self.ioctls = ioctls;
    }

    /// Takes in what the exit read.
    pub(super) fn exit(&mut self, exit: &Call) {
        let at_exit = self.meaning.at_exit;
        for (slot, value) in self.call.values.iter_mut().enumerate() {
            if at_exit >> slot & 1 == 1 {
                *value = exit.values.get(slot).copied().unwrap_or(0);
            }
        }
        self.call.unread = self.call.unread & !at_exit | exit.unread & at_exit;
    }

    /// The value in a slot with a role, if it was read.
    pub(super) fn value(&self, slot: Option<usize>) -> Option<u64> {
        self.call.value(slot?)
    }

    /// The same, of a handle: 0 is none.
    pub(super) fn handle(&self, slot: Option<usize>) -> Option<u64> {
        self.value(slot).filter(|&handle| handle != 0)
    }

    /// The text with the role of a name as the program has it, if all of it was read.
    pub(super) fn raw_name(&self) -> Option<Rc<str>> {
        let content = self.call.content(self.meaning.tags.name?.into())?;
        let text = content
            .complete
            .then(|| String::from_utf8_lossy(&content.bytes))?;
        Some(text.into())
    }

    /// It, as the call that made a launch.
    pub(super) fn launching(&self) -> LaunchingCall {
        LaunchingCall {
            call: self.call.id,
            api: self.meaning.api.clone(),
            function: self.meaning.function.clone(),
            pid: self.call.pid,
            tid: self.call.tid,
            start_ns: self.call.start_ns,
            end_ns: None,
            stack: self.call.stack,
            flags: self.call.flags,
        }
    }

    /// Notes work done by it or by a part of it.
    pub(super) fn works_on(&mut self, name: &KernelName) {
        if self.call.work.first.is_none() {
            self.call.work.first = Some(name.clone());
        }
    }

    /// Takes over what a part of it knew and it did not.
    pub(super) fn learn_from(&mut self, part: &mut Self) {
        self.call.work.add(part.call.work.launches);
        let (own, of_part) = (&mut self.call.nesting, &mut part.call.nesting);
        own.nested_ns = own.nested_ns.saturating_add(of_part.nested_ns);
        own.inner.push(part.meaning.probe.clone());
        own.inner.append(&mut of_part.inner);
        if self.call.work.first.is_none() {
            self.call.work.first = part.call.work.first.take();
        }
        self.recorded = part.recorded.or(self.recorded);
        if self.name.is_none() {
            self.name = part.name.clone();
        }
        if self.inner_image.is_none() {
            let own = part.image.as_ref().map(|image| Rc::new(image.finished()));
            self.inner_image = own.or_else(|| part.inner_image.clone());
        }
        self.learn_values(part);
    }

    /// Fills slots that hold nothing from the part's slots of the same name.
    fn learn_values(&mut self, part: &Self) {
        if self.call.unread == 0 {
            return;
        }
        let probe = self.meaning.probe.clone();
        for (slot, info) in probe.values.iter().enumerate().take(MAX_VALUES) {
            if self.call.value(slot).is_some() || info.name.is_empty() {
                continue;
            }
            let known = part.meaning.probe.slot(&info.name);
            if let Some(value) = known.and_then(|slot| part.call.value(slot)) {
                self.call.values[slot] = value;
                self.call.unread &= !(1 << slot);
            }
        }
    }
}

fn since(call: &Call) -> u64 {
    match call.around_ns {
        0 => call.time_ns,
        around if call.flags & CALL_TAIL != 0 => around,
        _ => call.time_ns,
    }
}

/// The slots that hold nothing after the record of an entry.
fn unread(call: &Call, known: &ProbeMeaning) -> u16 {
    if call.is_exit() {
        // An exit without its entry: what the entry read is there if it was kept.
        let missing = (0..MAX_VALUES).filter(|&slot| call.values[slot] == 0);
        let missing = missing.fold(0, |bits, slot| bits | 1 << slot);
        return (call.unread | missing & !known.at_exit) & ALL_SLOTS;
    }
    (call.unread | known.at_exit) & ALL_SLOTS
}
