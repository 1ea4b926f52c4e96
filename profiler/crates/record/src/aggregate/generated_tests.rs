//! Code that is generated at run time.

use super::tests::{exec_with_map, run, sample};
use super::*;
use aiprof_model::profile::{FrameKind, Profile};
use aiprof_model::wire::{FileKey, MapEvent, ProcessEvent, ProcessEventKind, StopReason};
use aiprof_symbols::symbolize::SymFrame;

/// Code at 0x9010 that was something else at each of some times.
struct Changing {
    times: Vec<u64>,
    frames: FxHashMap<Code, Vec<SymFrame>>,
}

impl Changing {
    fn at(times: &[u64]) -> Self {
        let frame = |name: String| SymFrame {
            name,
            kind: FrameKind::Jit,
            source: None,
        };
        let (pid, address) = (1, 0x9010);
        let since = times.iter().map(|&since| {
            let code = Code::JitSince {
                pid,
                address,
                since,
            };
            (code, vec![frame(format!("since {since}"))])
        });
        let last = (Code::Jit { pid, address }, vec![frame("last".into())]);
        Self {
            times: times.to_vec(),
            frames: since.chain([last]).collect(),
        }
    }
}

impl NameSource for Changing {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.frames.get(code).map_or(&[], Vec::as_slice)
    }

    fn changes(&self, code: &Code) -> &[u64] {
        match code {
            Code::Jit { .. } => &self.times,
            _ => &[],
        }
    }

    fn file_address(&self, _: u32, offset: u64) -> u64 {
        offset
    }

    fn cgroup(&self, _: u64) -> Option<&str> {
        None
    }
}

fn map(start: u64, path: &str) -> Event {
    let file = FileKey {
        path: path.into(),
        build_id: None,
        device: 0,
        inode: 0,
        version: 0,
    };
    Event::Process(ProcessEvent {
        time_ns: 1,
        pid: 1,
        tid: 1,
        kind: ProcessEventKind::Map(MapEvent {
            start,
            len: 0x1000,
            file_offset: 0,
            file,
        }),
    })
}

fn at(time_ns: u64, stack: &[u64], stop: StopReason) -> Event {
    let Event::Sample(sample) = sample(1, stack, stop) else {
        unreachable!()
    };
    Event::Sample(Sample { time_ns, ..sample })
}

/// Stacks from the root on, with samples and time.
fn rows(profile: &Profile) -> Vec<(String, u64, u64)> {
    let mut rows: Vec<_> = profile
        .samples
        .iter()
        .map(|sample| {
            let frames = profile.stack_frames(sample.stack);
            let names: Vec<&str> = frames.map(|frame| profile.str(frame.name)).collect();
            (names.join(";"), sample.count, sample.time_ns)
        })
        .collect();
    rows.sort();
    rows
}

fn named(events: &[Event], times: &[u64]) -> Vec<(String, u64, u64)> {
    let (aggregate, table) = run(events);
    let names = Changing::at(times);
    let profile = build_profile(
        &aggregate,
        &table.processes.files,
        &names,
        Default::default(),
    );
    rows(&profile)
}

#[test]
fn samples_are_named_by_what_was_there_at_their_time() {
    let [exec, program] = exec_with_map(1, "/bin/prog");
    let dump = map(0x5000, "/tmp/jit-1.dump");
    let code = map(0x9000, "//anon");
    let stack = [0x9010, 0x1011];
    let end = StopReason::End;
    let mut events = vec![exec, program, dump, code];
    for time in [5, 10, 19, 20, 500, 25] {
        events.push(at(time, &stack, end));
    }
    let row = |name: &str, count: u64| (format!("[no symbols prog];{name}"), count, 10 * count);
    assert_eq!(
        named(&events, &[10, 20]),
        [row("[jit]", 1), row("since 10", 2), row("since 20", 3)]
    );
    assert_eq!(named(&events, &[]), [row("last", 6)]);
}

/// Who has no jitdump file is not asked for times.
#[test]
fn times_are_kept_for_processes_that_need_them() {
    let [exec, program] = exec_with_map(1, "/bin/prog");
    let events = [
        exec,
        program,
        map(0x9000, "//anon"),
        at(15, &[0x9010], StopReason::End),
    ];
    assert_eq!(named(&events, &[10, 20]), [("last".to_owned(), 1, 10)]);
}

#[test]
fn a_cut_names_the_runtime_whose_code_it_met() {
    let [exec, program] = exec_with_map(1, "/bin/prog");
    let why = "no unwind data, no frame pointers";
    let cut = |paths: &[&str], stack: &[u64]| {
        let mut events = vec![exec.clone(), program.clone(), map(0x9000, "//anon")];
        let starts = (0x2_0000..).step_by(0x1000);
        events.extend(starts.zip(paths).map(|(start, path)| map(start, path)));
        events.push(at(5, stack, StopReason::FramePointer));
        named(&events, &[]).remove(0).0
    };
    let java = ["/lib/libjvm.so"];
    assert_eq!(
        cut(&java, &[0x9010]),
        format!("[stack cut: {why}, in Java (try -XX:+PreserveFramePointer)];last")
    );
    let own = cut(&["/lib/libpython3.11.so.1.0"], &[0x2_0010]);
    assert!(
        own.starts_with(&format!("[stack cut: {why}, in Python];")),
        "{own}"
    );
    // It ended in the program's own code.
    let other = cut(&java, &[0x9010, 0x1011]);
    assert!(
        other.starts_with(&format!("[stack cut: {why}];")),
        "{other}"
    );
    let unknown = cut(&[], &[0x9010]);
    assert_eq!(unknown, format!("[stack cut: {why}];last"));
}
