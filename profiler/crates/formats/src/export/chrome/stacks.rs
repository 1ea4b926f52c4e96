//! Stacks as folded text, with every address named once.

use crate::export::names;
use aiprof_analysis::{
    aggregate::{Code, Names, NoStack, each_code, ends_at_entry, unknown_name},
    correlate::FinishedCall,
};
use aiprof_common::{
    CALL_STACK_BUSY, CALL_STACK_LIMITED, FLAG_KERNEL_FAILED, FLAG_KERNEL_TRUNCATED,
};
use aiprof_model::{
    process::{FileTable, ProcessTable},
    profile::{FrameKind, LossKind, Losses},
    wire::{CallStack, Sample, StopReason},
};
use rustc_hash::FxHashMap;

/// Most code addresses whose text is kept; the profile has the same limit.
const MAX_CODES: usize = 1 << 20;
/// Most stacks of calls that are kept.
const MAX_STACKS: usize = 1 << 17;
/// Most frames of all stacks of calls together: 16 MiB.
const MAX_FRAMES: usize = 4 << 20;
/// Longest text of a stack in bytes: frames towards the root are left out beyond it.
const MAX_STACK: usize = 64 << 10;

/// Stands for frames that there was no room for.
const LEFT_OUT: &str = "[..]";

/// Knows the names of code, and the stacks that calls refer to.
pub(super) struct Stacks<'n> {
    names: &'n dyn Names,
    index: FxHashMap<Code, u32>,
    /// The frames at an address, outermost first, separated by `;`.
    frames: Vec<Box<str>>,
    known: FxHashMap<u64, Box<[u32]>>,
    known_frames: usize,
    pub(super) losses: Losses,
}

impl<'n> Stacks<'n> {
    /// Knows no stack yet.
    pub(super) fn new(names: &'n dyn Names) -> Self {
        Self {
            names,
            index: FxHashMap::default(),
            frames: Vec::new(),
            known: FxHashMap::default(),
            known_frames: 0,
            losses: Losses::default(),
        }
    }

    /// Keeps the stack of calls that follow.
    pub(super) fn note(&mut self, processes: &ProcessTable, stack: &CallStack) {
        let is_full = self.known.len() >= MAX_STACKS || self.known_frames >= MAX_FRAMES;
        if is_full && !self.known.contains_key(&stack.id) {
            self.losses.add(LossKind::TableFull, 1);
            return;
        }
        let (codes, _) = self.codes(processes, &stack.sample);
        self.known_frames += codes.len();
        if let Some(old) = self.known.insert(stack.id, codes.into()) {
            self.known_frames -= old.len();
        }
    }

    /// The stack of a call, root first, frames separated by `;`; or why there is
    /// none.
    pub(super) fn of_call(&self, call: &FinishedCall) -> String {
        match self.known.get(&call.stack) {
            Some(codes) => self.text(codes),
            None => why(call).name().to_owned(),
        }
    }

    /// The stack of a sample in the same way, and the name of its leaf.
    pub(super) fn of_sample(
        &mut self,
        processes: &ProcessTable,
        sample: &Sample,
    ) -> (String, String) {
        let (codes, cut) = self.codes(processes, sample);
        for (flag, loss) in [
            (FLAG_KERNEL_FAILED, LossKind::KernelStackFailed),
            (FLAG_KERNEL_TRUNCATED, LossKind::KernelStackTruncated),
        ] {
            self.losses.add(loss, u64::from(sample.flags & flag != 0));
        }
        if let Some(loss) = cut.and_then(StopReason::loss) {
            self.losses.add(loss, 1);
        }
        let leaf = codes.first().map_or(names::UNKNOWN, |&id| self.at(id));
        let leaf = leaf.rsplit(';').next().unwrap_or(leaf).to_owned();
        (self.text(&codes), leaf)
    }

    /// The handles of a stack's codes, leaf first, and why it was cut.
    fn codes(
        &mut self,
        processes: &ProcessTable,
        sample: &Sample,
    ) -> (Vec<u32>, Option<StopReason>) {
        let mut codes = Vec::with_capacity(sample.kernel.len() + sample.user.len() + 1);
        let process = processes.get(sample.thread.pid);
        each_code(processes, process, sample, |code| codes.push(code));
        let cut = match codes.as_slice() {
            [.., root, Code::Cut(reason)] if ends_at_entry(self.names, root, *reason) => {
                codes.pop();
                None
            }
            [.., Code::Cut(reason)] => Some(*reason),
            _ => None,
        };
        let ids = codes
            .into_iter()
            .map(|code| self.code(&processes.files, code));
        (ids.collect(), cut)
    }

    /// The handle of a code.
    fn code(&mut self, files: &FileTable, code: Code) -> u32 {
        if let Some(&known) = self.index.get(&code) {
            return known;
        }
        if self.frames.len() >= MAX_CODES {
            self.losses.add(LossKind::TableFull, 1);
            return u32::MAX;
        }
        let frames = self.names.frames(&code);
        let unnamed = frames.iter().all(|f| f.kind == FrameKind::Unknown);
        if unnamed && !matches!(code, Code::Cut(_)) {
            self.losses.add(LossKind::FramesUnnamed, 1);
        }
        let text = match frames {
            [] => names::suffixed(&unknown_name(files, code), FrameKind::Unknown),
            frames => {
                let texts = frames.iter().map(|f| names::suffixed(&f.name, f.kind));
                texts.collect::<Vec<_>>().join(";")
            }
        };
        let id = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        self.frames.push(text.into());
        self.index.insert(code, id);
        id
    }

    fn at(&self, id: u32) -> &str {
        self.frames.get(id as usize).map_or(LEFT_OUT, |text| text)
    }

    /// The text of a stack, given leaf first.
    fn text(&self, codes: &[u32]) -> String {
        let mut room = MAX_STACK;
        let mut kept = codes.iter().take_while(|&&id| {
            let len = self.at(id).len() + 1;
            let fits = room >= len;
            room = room.saturating_sub(len);
            fits
        });
        let kept = kept.by_ref().count();
        let mut text = String::with_capacity(MAX_STACK.min(kept * 32));
        if kept < codes.len() {
            text.push_str(LEFT_OUT);
        }
        for &id in codes.iter().take(kept).rev() {
            if !text.is_empty() {
                text.push(';');
            }
            text.push_str(self.at(id));
        }
        text
    }
}

/// Why a call has no stack.
fn why(call: &FinishedCall) -> NoStack {
    match call.stack {
        0 if call.flags & CALL_STACK_LIMITED != 0 => NoStack::Limited,
        0 if call.flags & CALL_STACK_BUSY != 0 => NoStack::Busy,
        0 => NoStack::NotAsked,
        _ => NoStack::Lost,
    }
}
