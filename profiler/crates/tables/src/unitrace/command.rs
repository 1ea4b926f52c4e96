//! Commands of devices in a timeline: kernels, copies, fills and barriers, with the names
//! that unitrace gives them.

use super::args::{CommandArgs, CommandKey};
use super::{Scope, backend_of, is_of_device};
use aiprof_model::timeline::{Event, Quality, Time, Timeline};
use std::borrow::Cow;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    Kernel,
    Memory,
    Barrier,
}

/// Commands of one name and shape that a timeline has one span for: one command of known
/// times, or some that lie between two times.
#[derive(Clone, Debug)]
pub(super) struct Command<'t> {
    /// As unitrace calls it.
    pub(super) backend: Cow<'t, str>,
    /// As unitrace calls it, without quotes and shape.
    pub(super) name: Cow<'t, str>,
    /// The shape, where the name has it.
    own_shape: Option<&'t str>,
    /// Its arguments in the timeline.
    pub(super) known: CommandArgs<'t>,
    /// Thread that made it, 0: not known.
    pub(super) tid: u64,
    /// The device's handle, 0: not known.
    pub(super) device: u64,
    pub(super) kind: CommandKind,
    pub(super) count: u64,
    /// The device's own times; else the commands lie between the two.
    pub(super) is_exact: bool,
    pub(super) start: Time,
    pub(super) end: Time,
    /// From the calls that made them to those that handed them over, in all, nanoseconds.
    pub(super) append_ns: Option<u64>,
    /// From there to the begin on the device, in all, nanoseconds.
    pub(super) submit_ns: Option<u64>,
}

impl<'t> Command<'t> {
    /// How long it took, nanoseconds, where its times are known.
    pub(super) fn length_ns(&self) -> u64 {
        u64::try_from((self.end - self.start).nanos()).unwrap_or(0)
    }

    /// Name and shape.
    pub(super) fn shaped(&self) -> String {
        match self.own_shape {
            Some(shape) => format!("{}{shape}", self.name),
            None => {
                let shape = shape(&self.known, self.kind).unwrap_or_default();
                format!("{}{shape}", self.name)
            }
        }
    }

    /// Backend and name, with the shape where that is wanted.
    pub(super) fn title(&self, scope: &Scope) -> (Cow<'t, str>, Cow<'t, str>) {
        let name = match scope.shapes {
            true => self.shaped().into(),
            false => self.name.clone(),
        };
        (self.backend.clone(), name)
    }
}

/// The commands of a timeline, in its order.
pub(super) fn commands<'t>(
    timeline: &'t Timeline,
    scope: &'t Scope,
) -> impl Iterator<Item = (&'t Event, Command<'t>)> {
    let slices = timeline.events.iter().filter(|event| event.is_slice());
    slices.filter_map(move |event| Some((event, command(timeline, event, scope)?)))
}

fn command<'t>(timeline: &'t Timeline, event: &Event, scope: &Scope) -> Option<Command<'t>> {
    let category = timeline.name(event.cat);
    if !is_device_category(category) {
        return None;
    }
    let known = CommandArgs::of(timeline, event);
    if let Some(wanted) = scope.pid
        && known.number(CommandKey::Pid) != Some(wanted.into())
    {
        return None;
    }
    let backend: Cow<'t, str> = match known.text(CommandKey::Api) {
        Some(api) => backend_of(api),
        None if category == "gpu_op" => "L0".into(),
        None => "device".into(),
    };
    if !scope.wants_backend(&backend) {
        return None;
    }
    let kind = kind(&known, category);
    let (name, own_shape) = name(timeline, event, &known, (&backend, kind));
    if !scope.commands.wants(&name) {
        return None;
    }
    let is_exact = event.quality == Quality::Exact && category != "estimated";
    Some(Command {
        backend,
        name,
        own_shape,
        tid: known.number(CommandKey::Tid).unwrap_or(0),
        device: handle(&known).unwrap_or(0),
        kind,
        count: match is_exact {
            true => 1,
            false => known.number(CommandKey::Launches).unwrap_or(1),
        },
        is_exact,
        start: event.start,
        end: event.end(),
        append_ns: nanos(&known, CommandKey::AppendUs),
        submit_ns: nanos(&known, CommandKey::SubmitUs),
        known,
    })
}

/// Whether events of a category are commands. unitrace's and Kineto's traces, of 2021 too.
pub(super) fn is_device_category(category: &str) -> bool {
    is_of_device(category) || matches!(category, "Kernel" | "Memcpy" | "Memset")
}

/// The device's handle.
fn handle(known: &CommandArgs<'_>) -> Option<u64> {
    let text = known.text(CommandKey::DeviceHandle)?;
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Microseconds among an event's arguments, as nanoseconds.
fn nanos(known: &CommandArgs<'_>, key: CommandKey) -> Option<u64> {
    let us: f64 = known.json(key)?.parse().ok()?;
    let ns = (us * 1000.0).round();
    (ns >= 0.0).then_some(ns as u64)
}

fn kind(known: &CommandArgs<'_>, category: &str) -> CommandKind {
    let said = known.text(CommandKey::Kind);
    match said.as_deref().unwrap_or(category) {
        "copy" | "fill" | "gpu_memcpy" | "gpu_memset" | "Memcpy" | "Memset" => CommandKind::Memory,
        "barrier" | "gpu_barrier" => CommandKind::Barrier,
        _ => CommandKind::Kernel,
    }
}

/// A command's name, and its shape where the name has it.
fn name<'t>(
    timeline: &'t Timeline,
    event: &Event,
    known: &CommandArgs<'t>,
    (backend, kind): (&str, CommandKind),
) -> (Cow<'t, str>, Option<&'t str>) {
    let sym = event.original_name();
    let own = timeline.name(sym);
    if timeline.name(event.cat) == "gpu_op" {
        let plain = own.trim_matches('"');
        let at = plain.find("[SIMD").or_else(|| {
            let bytes = plain.strip_suffix(']')?;
            let bytes = bytes.trim_end_matches(|c: char| c.is_ascii_digit());
            bytes.ends_with('[').then(|| bytes.len() - 1)
        });
        let (name, shape) = plain.split_at(at.unwrap_or(plain.len()));
        return (name.into(), Some(shape));
    }
    let call = || known.text(CommandKey::Call).unwrap_or_default();
    let name = match (backend, kind) {
        (_, CommandKind::Kernel) => own.into(),
        ("L0", _) => {
            let letters = own.find('(').and_then(|at| own.get(at..));
            let letters = letters.filter(|_| kind == CommandKind::Memory);
            format!("{}{}", command_list(&call(), own), letters.unwrap_or("")).into()
        }
        ("CL", _) => match call() {
            call if call.starts_with("cl") => call,
            _ => own.into(),
        },
        _ => own.into(),
    };
    (name, None)
}

/// The function that puts a command on a list: what was called, where that is one.
fn command_list<'a>(call: &'a str, own: &str) -> Cow<'a, str> {
    match call {
        call if call.starts_with("zeCommandListAppend") => call.into(),
        _ if own.starts_with("Memcpy") => "zeCommandListAppendMemoryCopy".into(),
        _ if own.starts_with("Memset") => "zeCommandListAppendMemoryFill".into(),
        _ => "zeCommandListAppendBarrier".into(),
    }
}

/// `[SIMD32 {groups} {size of a group}]`, or `[bytes]`.
fn shape(known: &CommandArgs<'_>, kind: CommandKind) -> Option<String> {
    match kind {
        CommandKind::Barrier => None,
        CommandKind::Memory => {
            let bytes = known.number(CommandKey::Bytes).filter(|bytes| *bytes > 0)?;
            Some(format!("[{bytes}]"))
        }
        CommandKind::Kernel => {
            let sizes = |own: CommandKey, other: CommandKey| {
                let sizes = known.json(own).or(known.json(other))?;
                let numbers = sizes.split(|c: char| !c.is_ascii_digit());
                let numbers: Vec<_> = numbers.filter(|n| !n.is_empty()).take(3).collect();
                (!numbers.is_empty()).then(|| numbers.join("; "))
            };
            let (groups, local) = (
                sizes(CommandKey::Groups, CommandKey::Grid),
                sizes(CommandKey::Local, CommandKey::Block),
            );
            let simd = known.number(CommandKey::Simd);
            if groups.is_none() && local.is_none() && simd.is_none() {
                return None;
            }
            let simd = simd.map_or(String::new(), |simd| match simd {
                1 => "SIMD_ANY ".to_owned(),
                simd => format!("SIMD{simd} "),
            });
            let or = |sizes: Option<String>| sizes.unwrap_or_else(|| "?; ?; ?".to_owned());
            Some(format!("[{simd}{{{}}} {{{}}}]", or(groups), or(local)))
        }
    }
}
