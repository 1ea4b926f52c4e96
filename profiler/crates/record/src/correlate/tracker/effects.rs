//! What finished calls change in what handles mean.

use super::{
    KernelStep,
    gone::GoneKernel,
    handles::{CreatedKernel, ListKind, ModuleImage, Name},
    meaning::{Effect, HandleKind},
    open::OpenCall,
    state::{KernelChange, TrackerState},
};
use aiprof_model::{
    profile::LossKind,
    wire::{KernelPlaced, PlacedBy},
};
use std::rc::Rc;

/// Applies a call that did not fail. `now` is when it was over, or its entry for
/// one whose end is not seen.
pub(super) fn apply(open: &mut OpenCall, now: u64, state: &mut TrackerState) {
    // Whether there was room for it; `None`: it needs none.
    let fits = match open.meaning.effect {
        Effect::None => None,
        Effect::NewKernel => new_kernel(open, now, state),
        Effect::NameKernel => name_kernel(open, state),
        Effect::PlaceKernel => {
            place_kernel(open, now, state);
            None
        }
        Effect::GroupSize => Some(group_size(open, state)),
        Effect::NewModule => new_module(open, now, state),
        Effect::NewList { immediate } => new_list(open, immediate, now, state),
        Effect::BeginCapture => begin_capture(open, state),
        Effect::EndCapture => end_capture(open, now, state),
        Effect::CopyList => copy_list(open, now, state),
        Effect::AddGraph => add_graph(open, state),
        Effect::CloseList => {
            let list = open.handle(open.meaning.slots.list);
            if let Some((list, (handles, _))) = list.zip(state.known_handles(open))
                && let Some(list) = handles.lists.get_mut(list)
                && list.kind == ListKind::Undecided
            {
                list.kind = ListKind::Regular;
            }
            None
        }
        Effect::ResetList => reset_list(open, now, state),
        Effect::NewQueue => new_queue(open, now, state),
        Effect::Retain(object) => {
            if let Some((handle, (handles, _))) =
                object_of(open, object).zip(state.known_handles(open))
            {
                handles.retain(object, handle);
            }
            None
        }
        Effect::Release(object) => {
            let entered = open.call.start_ns;
            let pid = open.call.pid;
            let (mut ended, mut gone) = (Vec::new(), None);
            if let Some((handle, (handles, room))) =
                object_of(open, object).zip(state.known_handles(open))
            {
                let is_kernel = object == HandleKind::Kernel;
                gone = is_kernel
                    .then(|| GoneKernel::of(&handles.kernels, handle))
                    .flatten();
                ended = handles.release(object, handle, entered, room);
                // Others may own it, too.
                gone = gone.filter(|gone| handles.kernels.since_ns(handle) != Some(gone.since_ns));
            }
            if let Some(gone) = gone {
                if !open.is_end_reported {
                    state.kernel_event(open, now, gone.handle, KernelStep::Destroyed);
                }
                state.kernels.gone.add(pid, gone.until(now));
            }
            for number in ended {
                state.kernels.gone.code_gone(pid, number, now);
                state
                    .kernels
                    .changes
                    .push(KernelChange::Gone(pid, number, now));
            }
            None
        }
        Effect::Alloc(memory) => {
            let slots = &open.meaning.slots;
            let Some(address) = open.handle(slots.address) else {
                return;
            };
            let bytes = open.value(slots.bytes).unwrap_or(0);
            let (handles, room) = state.handles(open);
            Some(handles.alloc(address, bytes, memory, now, room))
        }
        Effect::Free => {
            let address = open.handle(open.meaning.slots.address);
            if let Some((address, (handles, room))) = address.zip(state.known_handles(open)) {
                handles.free(address, open.call.start_ns, room);
            }
            None
        }
    };
    if fits == Some(false) {
        state.losses.add(LossKind::HandlesRefused, 1);
    }
}

fn object_of(open: &OpenCall, object: HandleKind) -> Option<u64> {
    let slots = &open.meaning.slots;
    open.handle(match object {
        HandleKind::Kernel => slots.kernel,
        HandleKind::Module => slots.module,
        HandleKind::List => slots.list,
        HandleKind::Queue => slots.queue,
        HandleKind::Graph => slots.graph,
    })
}

fn new_kernel(open: &OpenCall, now: u64, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let seen = open.handle(slots.kernel);
    // Not seen to be put there, but it is.
    let same = slots.kernel.filter(|_| open.is_assumed);
    let same = same.and_then(|slot| open.call.values.get(slot)).copied();
    let handle = seen.or(same.filter(|&handle| handle != 0))?;
    let module = open.handle(slots.module);
    let (handles, room) = state.handles(open);
    let is_doubtful = seen.is_none();
    if let Some(old) = handles.kernels.get_mut(handle).filter(|_| open.is_assumed) {
        if !old.is_doubtful {
            // It was not destroyed: this call failed, or another handle was put
            // there since.
            return None;
        }
        if is_doubtful {
            // Either of the two may have failed.
            old.name = Name::Missing;
            return None;
        }
    }
    let name = open.name.clone();
    // Made by an inner layer inside of this call: the same kernel.
    let made_inside = |since_ns: &u64| *since_ns >= open.call.start_ns;
    let inner = handles.kernels.since_ns(handle).filter(made_inside);
    let inner = inner.and_then(|_| handles.kernels.get(handle));
    let is_new = inner.is_none_or(|inner| name.is_some() && inner.name == Name::Missing);
    let (number, code_since_ns) = match inner {
        Some(inner) => (inner.number, inner.code_since_ns),
        None => handles.kernel_number(module, name.as_ref(), now, room),
    };
    let kernel = CreatedKernel {
        number,
        code_since_ns,
        name: name.map_or(Name::Missing, Name::Known),
        local: [0; 3],
        module: module.and_then(|module| handles.module(module)),
        is_doubtful,
    };
    let fits = handles
        .within(room, |all| all.kernels.insert(handle, kernel, now))
        .is_some();
    if is_new && !is_doubtful {
        let step = KernelStep::Created {
            name: open.raw_name(),
            is_certain: !open.is_assumed,
        };
        state.kernel_event(open, now, handle, step);
    }
    Some(fits)
}

/// `CL_KERNEL_FUNCTION_NAME` (CL/cl.h).
const CL_KERNEL_FUNCTION_NAME: u64 = 0x1190;

fn name_kernel(open: &OpenCall, state: &mut TrackerState) -> Option<bool> {
    let asked = open.meaning.slots.name_info;
    if asked.is_some() && open.value(asked) != Some(CL_KERNEL_FUNCTION_NAME) {
        return None;
    }
    let handle = open.handle(open.meaning.slots.kernel);
    let (handle, name) = handle.zip(open.name.clone())?;
    let (handles, room) = state.handles(open);
    let Some(kernel) = handles.kernel(handle, room) else {
        return Some(false);
    };
    if !matches!(kernel.name, Name::Known(_)) {
        kernel.name = Name::Known(name);
    }
    None
}

/// The runtime returns where a kernel lies. What was read late may have failed, or have been
/// changed since: nothing would confirm it.
fn place_kernel(open: &OpenCall, now: u64, state: &mut TrackerState) {
    if open.is_assumed {
        return;
    }
    let slots = &open.meaning.slots;
    let handle = open.handle(slots.kernel);
    let Some((kernel, address)) = handle.zip(open.handle(slots.base)) else {
        return;
    };
    let placed = KernelPlaced {
        time_ns: now,
        pid: open.call.pid,
        kernel,
        address,
        size: 0,
        instruction_base: None,
        by: PlacedBy::Runtime,
    };
    state.place_kernel(&placed);
    state.kernel_event(open, now, kernel, KernelStep::Located { address });
}

fn group_size(open: &mut OpenCall, state: &mut TrackerState) -> bool {
    let local = open.meaning.slots.local.map(|slot| small(open.value(slot)));
    let before = set_group_size(open, local, state);
    open.group_before = before;
    before.is_some()
}

/// Sets a kernel's group size, and gives the one it had.
fn set_group_size(open: &OpenCall, local: [u32; 3], state: &mut TrackerState) -> Option<[u32; 3]> {
    let Some(handle) = open.handle(open.meaning.slots.kernel) else {
        return Some(local);
    };
    let (handles, room) = state.handles(open);
    let kernel = handles.kernel(handle, room)?;
    Some(std::mem::replace(&mut kernel.local, local))
}

/// Takes back what a call changed that failed, if that was applied before it ended.
pub(super) fn undo(open: &mut OpenCall, state: &mut TrackerState) {
    if let Some(before) = open.group_before.take() {
        set_group_size(open, before, state);
    }
    if let Effect::Retain(object) = open.meaning.effect
        && let Some((handle, (handles, room))) =
            object_of(open, object).zip(state.known_handles(open))
    {
        handles.release(object, handle, open.call.start_ns, room);
    }
}

fn new_module(open: &OpenCall, now: u64, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let handle = open.handle(slots.module)?;
    let format = open.value(slots.format);
    let own = open.image.as_ref().map(|image| image.finished());
    let inner = || open.inner_image.as_deref().cloned();
    let unseen = || ModuleImage {
        digest: None,
        bytes: 0,
        format: 0,
    };
    let mut image = own.or_else(inner).unwrap_or_else(unseen);
    image.format = format.unwrap_or(image.format);
    let (handles, room) = state.handles(open);
    Some(handles.new_module(handle, Rc::new(image), now, room))
}

fn new_list(open: &OpenCall, immediate: bool, now: u64, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let handle = open.handle(slots.list)?;
    let kind = if immediate {
        ListKind::Immediate
    } else {
        ListKind::Regular
    };
    let device = open.value(slots.device).unwrap_or(0);
    let (handles, room) = state.handles(open);
    if open.is_assumed && handles.lists.get(handle).is_some() {
        return None;
    }
    Some(handles.new_list(handle, kind, device, now, room))
}

/// What is put on a list or queue from here on is recorded, and done when the graph
/// that is made of it is executed.
fn begin_capture(open: &OpenCall, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let handle = open.handle(slots.list).or(open.handle(slots.queue))?;
    let (handles, room) = state.handles(open);
    let Some(list) = handles.list(handle, room) else {
        return Some(false);
    };
    // It works at once otherwise.
    list.kind = ListKind::Immediate;
    list.capturing = true;
    room.recorded += std::mem::take(&mut list.entries).len();
    None
}

fn end_capture(open: &OpenCall, now: u64, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let handle = open.handle(slots.list).or(open.handle(slots.queue))?;
    let graph = open.handle(slots.graph);
    let (handles, room) = state.handles(open);
    let is_captured = handles.lists.get(handle).is_some_and(|list| list.capturing);
    if !is_captured && graph.is_some_and(|graph| handles.lists.get(graph).is_some()) {
        // The inner layer's call, with the same handles, has made the graph already.
        return None;
    }
    let content = handles.take_entries(handle);
    Some(match graph {
        Some(graph) => handles.new_filled(graph, content, now, room),
        None => {
            room.recorded += content.0.len();
            true
        }
    })
}

fn copy_list(open: &OpenCall, now: u64, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let copy = open.handle(slots.list).or(open.handle(slots.graph));
    let (source, copy) = open.handle(slots.source).zip(copy)?;
    let (handles, room) = state.handles(open);
    let content = handles.copy_entries(source, room);
    Some(handles.new_filled(copy, content, now, room))
}

fn add_graph(open: &OpenCall, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let (source, graph) = open.handle(slots.source).zip(open.handle(slots.graph))?;
    let (handles, room) = state.handles(open);
    let (mut entries, mut refused) = handles.copy_entries(source, room);
    let per_list = room.per_list;
    let Some(list) = handles.list(graph, room) else {
        room.recorded += entries.len();
        return Some(false);
    };
    let fits = per_list
        .saturating_sub(list.entries.len())
        .min(entries.len());
    let (too_many, fits_all) = (entries.len() - fits, fits == entries.len());
    entries.truncate(fits);
    list.entries.append(&mut entries);
    refused += too_many as u64;
    list.refused += refused;
    room.recorded += too_many;
    Some(fits_all)
}

/// An emptied list is known again, whatever it held before.
fn reset_list(open: &OpenCall, now: u64, state: &mut TrackerState) -> Option<bool> {
    let handle = open.handle(open.meaning.slots.list)?;
    let (handles, room) = state.handles(open);
    handles.reset_list(handle, room);
    Some(match handles.lists.get_mut(handle) {
        Some(list) if list.kind == ListKind::Immediate => true,
        Some(list) => {
            list.kind = ListKind::Regular;
            true
        }
        None => handles.new_list(handle, ListKind::Regular, 0, now, room),
    })
}

fn new_queue(open: &OpenCall, now: u64, state: &mut TrackerState) -> Option<bool> {
    let slots = &open.meaning.slots;
    let handle = open.handle(slots.queue)?;
    let device = open.value(slots.device).unwrap_or(0);
    let (handles, room) = state.handles(open);
    let fits = handles.within(room, |all| all.queues.insert(handle, device, now));
    Some(fits.is_some())
}

/// A size that devices hold in 32 bits.
pub(super) fn small(value: Option<u64>) -> u32 {
    u32::try_from(value.unwrap_or(0)).unwrap_or(u32::MAX)
}
