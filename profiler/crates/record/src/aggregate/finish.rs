//! The aggregated samples with names: the profile.

use super::{
    Aggregator, Code, SampleKey, SampleTable, SampleValue, SpecialCode, aiu_rows,
    device_rows::DeviceRowWriter,
    driver::{HostStack, text},
    slices::part,
};
use aiprof_model::{
    process::{FileTable, Region, Runtime},
    profile::{
        Binary, BinaryId, FrameKind, Location, LocationId, LossKind, Losses, Meta, Profile,
        ProfileBuilder, Sample, Stack, Values,
    },
    wire::StopReason,
};
use aiprof_symbols::symbolize::SymFrame;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// Where names come from: a symbolizer live, the stored table for a capture.
pub trait NameSource {
    /// The frames at a code address, outermost first; empty if not known.
    fn frames(&self, code: &Code) -> &[SymFrame];

    /// Times at which the code at an address changed, ascending; empty: none are known,
    /// and [`NameSource::frames`] are those of all times.
    fn changes(&self, _: &Code) -> &[u64] {
        &[]
    }

    /// The virtual address in the ELF file that a file offset stands for.
    fn file_address(&self, file: u32, offset: u64) -> u64;

    /// The path of a control group by its id.
    fn cgroup(&self, id: u64) -> Option<&str>;
}

/// No names at all: every frame is unknown.
pub struct NoNames;

impl NameSource for NoNames {
    fn frames(&self, _: &Code) -> &[SymFrame] {
        &[]
    }

    fn file_address(&self, _: u32, offset: u64) -> u64 {
        offset
    }

    fn cgroup(&self, _: u64) -> Option<&str> {
        None
    }
}

/// Builds the profile of everything `aggregate` holds.
pub fn build_profile(
    aggregate: &Aggregator,
    files: &FileTable,
    names: &impl NameSource,
    meta: Meta,
) -> Profile {
    let everything = |_: &SampleValue| true;
    let values = aggregate.waits.as_ref().map(|options| match options.wall {
        true => Values::WallTime,
        false => Values::WaitTime,
    });
    build_part(aggregate, files, names, meta, (values, &everything))
}

/// Builds two profiles of everything an `aggregate` of waits and CPU time holds: the CPU
/// samples, with those of devices, and the waits. The losses are in the first.
pub fn build_profiles(
    aggregate: &Aggregator,
    files: &FileTable,
    names: &impl NameSource,
    meta: Meta,
) -> (Profile, Option<Profile>) {
    let on_cpu = |value: &SampleValue| value.count > 0;
    let cpu = build_part(aggregate, files, names, meta.clone(), (None, &on_cpu));
    let waits = aggregate.waits.as_ref().map(|_| {
        let values = Some(Values::WaitTime);
        let waited = |value: &SampleValue| value.count == 0;
        let mut waits = build_part(aggregate, files, names, meta, (values, &waited));
        waits.losses = Losses::default();
        waits
    });
    (cpu, waits)
}

/// Which samples of an aggregate a profile is of.
type OfValue<'a> = &'a dyn Fn(&SampleValue) -> bool;

/// Builds the profile of those samples that are wanted, which have these values; `None`: the
/// aggregate decides which.
fn build_part(
    aggregate: &Aggregator,
    files: &FileTable,
    names: &impl NameSource,
    meta: Meta,
    (values, wanted): (Option<Values>, OfValue<'_>),
) -> Profile {
    let mut builder = ProfileBuilder::new(meta);
    if let Some(calls) = aggregate
        .calls
        .as_ref()
        .filter(|_| aggregate.counts_launches())
    {
        builder.of(Values::Launches);
        builder.submissions(calls.submissions);
    }
    let period_ns = builder.meta().period_ns.max(1);
    if let Some(values) = values {
        builder.of(values);
    }
    builder.losses().merge(&aggregate.losses);
    builder.labels(&aggregate.recording_labels.to_vec());
    let table = &aggregate.table;
    let mut locations: Vec<Option<LocationId>> = vec![None; table.codes.values.len()];
    let mut locate = |builder: &mut ProfileBuilder, id: u32| {
        let code = table.codes.values.get(id as usize).copied();
        let code = code.unwrap_or(Code::Special(SpecialCode::UnknownProcess));
        let mut new = || match text_of(table, code) {
            Some((name, kind)) => text(builder, name, kind),
            None => location(builder, files, names, code),
        };
        match locations.get_mut(id as usize) {
            Some(slot) => *slot.get_or_insert_with(new),
            None => new(),
        }
    };
    let mut timed = FxHashMap::default();
    let mut stacks = FxHashMap::default();
    let mut processes = FxHashMap::default();
    let samples = table.samples.iter();
    let mut keys: Vec<_> = samples.filter(|(_, value)| wanted(value)).collect();
    keys.sort_by_key(|(k, _)| (k.pid, k.tid, k.stack, k.comm, k.thread, k.cgroup, k.labels));
    let pieces = keys
        .into_iter()
        .flat_map(|(key, &value)| pieces(aggregate, names, key, value));
    for (key, at, value) in pieces {
        let Some(codes) = table.stacks.values.get(key.stack as usize) else {
            continue;
        };
        let (stack, cut) = *stacks.entry((key.stack, at)).or_insert_with(|| {
            let code = |&id: &u32| (id, code_at(names, table.codes.values[id as usize], at));
            let codes = codes.iter().map(code);
            let (whole, cut) = split_cut(codes.collect(), names);
            let cut = cut.or_else(|| middle_cut(&whole));
            let mut host = HostStack::default();
            for &(id, code) in whole.iter().rev() {
                let at = match code {
                    Code::Function { name } => {
                        host.function(&mut builder, table.name(name));
                        continue;
                    }
                    Code::JitSince { .. } => *timed
                        .entry(code)
                        .or_insert_with(|| location(&mut builder, files, names, code)),
                    _ => locate(&mut builder, id),
                };
                if matches!(code, Code::Device) {
                    host.end();
                }
                host.push(&mut builder, at);
            }
            let has_stack = |(_, code): &(u32, Code)| !matches!(code, Code::NoStack(_));
            let complete = cut.is_none() && whole.iter().all(has_stack);
            (
                builder.stack(Stack {
                    locations: host.locations,
                    complete,
                    driver: host.driver,
                }),
                cut,
            )
        });
        if let Some(loss) = cut.and_then(StopReason::loss) {
            builder.losses().add(loss, value.count);
        }
        let process = (key.pid, key.comm, key.labels);
        let process = *processes.entry(process).or_insert_with(|| {
            let labels = table.labels.get(&key.labels);
            let labels = labels.map(|labels| labels.to_vec()).unwrap_or_default();
            builder.labelled_process(key.pid, table.name(key.comm), &labels)
        });
        let thread = builder.string(table.name(key.thread));
        let cgroup = names.cgroup(key.cgroup).map(|path| builder.string(path));
        builder.sample(Sample {
            process,
            tid: key.tid,
            thread,
            cgroup,
            stack,
            // A wait stands for as many samples as fit into it.
            count: match &aggregate.waits {
                Some(_) if value.count == 0 => (value.time_ns + period_ns / 2) / period_ns,
                _ => value.count,
            },
            time_ns: value.time_ns,
            bytes: value.bytes,
            device: None,
        });
    }
    let cgroup = |id| names.cgroup(id).map(str::to_owned);
    let writer = DeviceRowWriter::new(aggregate, &mut builder, &mut locate, &cgroup);
    if let Some(mut writer) = writer {
        writer.write_stalls();
        aiu_rows::add(&mut writer);
    }
    builder.finish()
}

/// The samples of a key, by what their code was when they were taken: `None` where it
/// was the same at all times.
fn pieces<'a>(
    aggregate: &Aggregator,
    names: &impl NameSource,
    key: &'a SampleKey,
    value: SampleValue,
) -> Vec<(&'a SampleKey, Option<u64>, SampleValue)> {
    let codes = aggregate.table.stacks.values.get(key.stack as usize);
    let codes = codes.map_or(&[][..], |codes| codes);
    let code = |&id: &u32| aggregate.table.codes.values.get(id as usize);
    let Some(times) = aggregate.times.of(key) else {
        return vec![(key, None, value)];
    };
    let changes: BTreeSet<u64> = codes
        .iter()
        .filter_map(code)
        .flat_map(|code| names.changes(code).iter().copied())
        .collect();
    if changes.is_empty() {
        return vec![(key, None, value)];
    }
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for &time in times {
        let since = changes.range(..=time).next_back().copied().unwrap_or(0);
        *counts.entry(since).or_default() += 1;
    }
    let mut left = value;
    let mut pieces = Vec::with_capacity(counts.len() + 1);
    for (since, count) in counts {
        let piece = part(left, count);
        left.count -= piece.count;
        left.time_ns -= piece.time_ns;
        pieces.push((key, Some(since), piece));
    }
    if left.count > 0 {
        pieces.push((key, None, left));
    }
    pieces
}

/// What was at an address of generated code at a time.
fn code_at(names: &impl NameSource, code: Code, at: Option<u64>) -> Code {
    let (Code::Jit { pid, address }, Some(at)) = (code, at) else {
        return code;
    };
    let changes = names.changes(&code);
    if changes.is_empty() {
        return code;
    }
    let known = changes.partition_point(|&since| since <= at);
    let since = known.checked_sub(1).map_or(0, |last| changes[last]);
    Code::JitSince {
        pid,
        address,
        since,
    }
}

/// A stack's codes, leaf first, and why it was cut. The entry point of programs
/// and of the dynamic loader is hand-written and often has no unwind data: a walk
/// that ends there did not end too early.
fn split_cut(
    mut codes: Vec<(u32, Code)>,
    names: &impl NameSource,
) -> (Vec<(u32, Code)>, Option<StopReason>) {
    let Some(reason) = codes.last().and_then(|(_, code)| code.cut()) else {
        return (codes, None);
    };
    let root = codes.len().checked_sub(2).and_then(|i| codes.get(i));
    if root.is_some_and(|(_, root)| ends_at_entry(names, root, reason)) {
        codes.pop();
        return (codes, None);
    }
    (codes, Some(reason))
}

/// Why frames are missing in the midst of a stack.
fn middle_cut(codes: &[(u32, Code)]) -> Option<StopReason> {
    codes.iter().find_map(|(_, code)| code.cut())
}

/// Whether a walk that ended in `root` for this reason was whole all the same.
pub(crate) fn ends_at_entry(
    names: &(impl NameSource + ?Sized),
    root: &Code,
    reason: StopReason,
) -> bool {
    let outermost = names.frames(root).first();
    reason == StopReason::FramePointer && outermost.is_some_and(|f| f.name == "_start")
}

/// The text of a frame that is no address, and what kind of code it stands for.
fn text_of(table: &SampleTable, code: Code) -> Option<(&str, FrameKind)> {
    let (name, kind) = match code {
        Code::Function { name } => (name, FrameKind::Native),
        Code::Work { name } => (name, FrameKind::DeviceSoftware),
        Code::Op { name } => (name, FrameKind::Operator),
        Code::Device => return Some(("-", FrameKind::Native)),
        _ => return None,
    };
    Some((table.name(name), kind))
}

fn location(
    builder: &mut ProfileBuilder,
    files: &FileTable,
    names: &impl NameSource,
    code: Code,
) -> LocationId {
    let (binary, address) = match code {
        Code::File { file, offset } => (
            file_binary(builder, files, file),
            names.file_address(file, offset),
        ),
        Code::Kernel { address } => (
            Some(builder.binary(Binary {
                path: "[kernel]".into(),
                build_id: None,
            })),
            address,
        ),
        Code::Jit { address, .. } | Code::JitSince { address, .. } => (None, address),
        _ => (None, 0),
    };
    if let Code::Python { function, line } = code {
        return script(builder, files, function, line);
    }
    let mut frames: Vec<_> = names
        .frames(&code)
        .iter()
        .map(|f| {
            let source = f.source.as_ref().map(|(file, line)| (file.as_str(), *line));
            builder.frame(&f.name, f.kind, source)
        })
        .collect();
    let unnamed = names
        .frames(&code)
        .iter()
        .all(|f| f.kind == FrameKind::Unknown);
    if unnamed && code.cut().is_none() && !matches!(code, Code::NoStack(_) | Code::Wait(_)) {
        builder.losses().add(LossKind::FramesUnnamed, 1);
    }
    if frames.is_empty() {
        let name = unknown_name(files, code);
        frames.push(builder.frame(&name, FrameKind::Unknown, None));
    }
    builder.location(Location {
        binary,
        address,
        frames,
    })
}

/// The location of a frame of an interpreter.
fn script(builder: &mut ProfileBuilder, files: &FileTable, function: u32, line: u32) -> LocationId {
    let known = files.scripts.get(function);
    let (name, file) = known.map_or(("[too many functions]", ""), |known| {
        (known.name.as_str(), known.file.as_str())
    });
    let frames = vec![builder.frame(name, FrameKind::Interpreter, Some((file, line)))];
    builder.location(Location {
        binary: None,
        address: 0,
        frames,
    })
}

fn file_binary(builder: &mut ProfileBuilder, files: &FileTable, file: u32) -> Option<BinaryId> {
    let key = files.key(aiprof_model::process::FileId(file))?;
    Some(builder.binary(Binary {
        path: key.path.clone(),
        build_id: key.build_id,
    }))
}

/// The name of a frame without a symbol: why it has none.
pub(crate) fn unknown_name(files: &FileTable, code: Code) -> String {
    match code {
        Code::File { file, .. } => {
            let path = files
                .key(aiprof_model::process::FileId(file))
                .map_or("", |k| k.path.as_str());
            match Region::of(&aiprof_model::wire::FileKey {
                path: path.to_owned(),
                build_id: None,
                device: 0,
                inode: 0,
                version: 0,
            }) {
                Region::Vdso => "[vdso]".into(),
                _ => format!("[no symbols {}]", path.rsplit('/').next().unwrap_or(path)),
            }
        }
        Code::Kernel { .. } => "[unknown kernel]".into(),
        Code::Jit { .. } | Code::JitSince { .. } => "[jit]".into(),
        Code::JavaMethod { .. } => "[Java method not known]".into(),
        Code::JsFunction { .. } => "[JavaScript function not known]".into(),
        Code::Special(SpecialCode::Vsyscall) => "[vsyscall]".into(),
        Code::Special(SpecialCode::Uprobes) => "[uprobes]".into(),
        Code::Special(SpecialCode::Unmapped) => "[unmapped]".into(),
        Code::Special(SpecialCode::UnknownProcess) => "[process gone]".into(),
        Code::Special(SpecialCode::Guessed) => "[caller guessed]".into(),
        Code::Special(SpecialCode::UnknownPython) => "[Python function not known]".into(),
        Code::Special(SpecialCode::PythonApart) => "[native frames not known]".into(),
        Code::Cut(reason) => cut_name(reason, None),
        Code::CutIn(reason, runtime) => cut_name(reason, Some(runtime)),
        Code::NoStack(reason) => reason.name().into(),
        Code::Wait(reason) => reason.name().into(),
        Code::Python { function, .. } => files
            .scripts
            .get(function)
            .map_or_else(String::new, |known| known.name.clone()),
        Code::Function { .. } | Code::Work { .. } | Code::Op { .. } | Code::Device => String::new(),
    }
}

/// The root frame that shows that a stack was cut, why, and in which runtime's code.
fn cut_name(reason: StopReason, runtime: Option<Runtime>) -> String {
    let why = match reason.loss() {
        Some(LossKind::StackExiting) => return "[exiting]".into(),
        Some(loss) => loss.label().replacen("stacks cut", "stack cut", 1),
        None => "stack cut".into(),
    };
    let helps = reason == StopReason::FramePointer;
    match runtime.map(|runtime| (runtime.name(), runtime.remedy().filter(|_| helps))) {
        Some((name, Some(remedy))) => format!("[{why}, in {name} (try {remedy})]"),
        Some((name, None)) => format!("[{why}, in {name}]"),
        None => format!("[{why}]"),
    }
}
