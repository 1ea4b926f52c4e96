//! `--conditional-collection`: programs choose themselves which of their calls into
//! accelerator runtimes are recorded, as they do for VTune and unitrace.
//!
//! A process is on or off. Its calls of `__itt_pause` and `__itt_resume` decide. Before the
//! first of them its variable `PTI_ENABLE_COLLECTION` decides: off where that is unset or
//! begins with 0. Children begin in the state of their parents, other programs anew.
//!
//! While a process is off its work, its waiting and its own functions are left out
//! and counted. What it creates is not: it may be used later. Other variables that it
//! sets are no one's business: their names and values are left out, too.

use super::runtime::variable_of;
use aiprof_model::{
    probes::{CallKind, ProbeRole},
    wire::{ProcessEvent, ProcessEventKind},
};
use aiprof_record::correlate::{CallView, DataView};
use rustc_hash::FxHashMap;

/// The variable.
const VARIABLE: &str = "PTI_ENABLE_COLLECTION";
/// Most processes and threads remembered.
const MAX: usize = 65_536;

/// What a process has chosen.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// By the functions.
    paused: Option<bool>,
    /// Whether the variable means on; `None`: it is not set.
    variable: Option<bool>,
}

impl Said {
    fn is_on(self) -> bool {
        match self.paused {
            Some(paused) => !paused,
            None => self.variable.unwrap_or(false),
        }
    }
}

/// A `setenv` whose value is on its way.
#[derive(Clone, Copy, Debug)]
struct Setting {
    probe: u32,
    overwrites: bool,
    is_it: bool,
}

/// Which processes are on.
#[derive(Debug, Default)]
pub(crate) struct Conditional {
    processes: FxHashMap<u32, Said>,
    threads: FxHashMap<u32, Setting>,
    /// Calls left out so far.
    pub skipped: u64,
}

impl Conditional {
    /// A process begins, runs another program or ends.
    pub(crate) fn process(&mut self, event: &ProcessEvent) {
        match event.kind {
            ProcessEventKind::Fork { parent } if parent != event.pid => {
                if let Some(said) = self.processes.get(&parent).copied() {
                    self.processes.insert(event.pid, said);
                }
            }
            ProcessEventKind::Exec { .. } => {
                self.processes.remove(&event.pid);
                // At once: it may be gone when it is seen to launch.
                self.said(event.pid);
            }
            ProcessEventKind::Exit => {
                self.threads.remove(&event.tid);
                if event.pid == event.tid {
                    self.processes.remove(&event.pid);
                }
            }
            _ => {}
        }
    }

    /// Takes a call in; `false` if it must be left out.
    pub(crate) fn call(&mut self, call: &CallView<'_>) -> bool {
        let probe = call.probe();
        if probe.kind == CallKind::Control {
            if let (Some(role), false) = (probe.role, call.is_exit()) {
                self.control(role, call);
            }
            return true;
        }
        if !probe.kind.is_work() || self.said(call.pid()).is_on() {
            return true;
        }
        self.skipped += u64::from(call.begins());
        false
    }

    fn control(&mut self, role: ProbeRole, call: &CallView<'_>) {
        let said = self.said(call.pid());
        match role {
            ProbeRole::Pause => said.paused = Some(true),
            ProbeRole::Resume => said.paused = Some(false),
            ProbeRole::Clear => said.variable = None,
            ProbeRole::Set => {
                let slot = call.probe().slot("overwrite");
                let value = slot.and_then(|slot| call.value(slot));
                if self.threads.len() >= MAX {
                    self.threads.clear();
                }
                let setting = Setting {
                    probe: call.probe().id,
                    overwrites: value.is_none_or(|value| value != 0),
                    is_it: false,
                };
                self.threads.insert(call.tid(), setting);
            }
            _ => {}
        }
    }

    /// Takes a text of a call in; `false` if it belongs to one that is left out, or to another
    /// variable.
    pub(crate) fn data(&mut self, data: &DataView<'_>) -> bool {
        let probe = data.probe();
        if probe.kind != CallKind::Control {
            return !probe.kind.is_work() || self.said(data.pid()).is_on();
        }
        let text = data.whole();
        match probe.role {
            Some(ProbeRole::Unset) => {
                let is_it = text == Some(VARIABLE.as_bytes());
                if is_it {
                    self.said(data.pid()).variable = None;
                }
                is_it
            }
            Some(ProbeRole::Assign) => {
                let rest = text.and_then(|text| text.strip_prefix(VARIABLE.as_bytes()));
                let value = match rest.map(<[u8]>::split_first) {
                    Some(Some((b'=', value))) => Some(is_on(value)),
                    Some(None) => None,
                    Some(Some(_)) | None => return false,
                };
                self.said(data.pid()).variable = value;
                true
            }
            Some(ProbeRole::Set) => text.is_some_and(|text| self.set(data, text)),
            _ => true,
        }
    }

    /// Takes in a text of a `setenv`; whether it is the variable's.
    fn set(&mut self, data: &DataView<'_>, text: &[u8]) -> bool {
        let setting = self.threads.get_mut(&data.tid());
        let Some(setting) = setting.filter(|setting| setting.probe == data.probe().id) else {
            return false;
        };
        if data.name() == "name" {
            setting.is_it = text == VARIABLE.as_bytes();
            return setting.is_it;
        }
        let setting = *setting;
        let said = self.said(data.pid());
        if setting.is_it && (setting.overwrites || said.variable.is_none()) {
            said.variable = Some(is_on(text));
        }
        setting.is_it
    }

    /// What a process has chosen; at first by its environment.
    fn said(&mut self, pid: u32) -> &mut Said {
        if self.processes.len() >= MAX && !self.processes.contains_key(&pid) {
            self.processes.clear();
        }
        self.processes.entry(pid).or_insert_with(|| Said {
            paused: None,
            variable: variable_of(pid, VARIABLE).map(|value| is_on(value.as_encoded_bytes())),
        })
    }
}

/// Whether a value of the variable means on; an empty one does.
fn is_on(value: &[u8]) -> bool {
    value.first() != Some(&b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::{
        probes::{DataFormat, DataInfo, Probe, ResultKind, ValueFormat, ValueInfo},
        wire::{Call, CallData, Event},
    };
    use aiprof_record::correlate::{Tracked, Tracker};

    fn probe(id: u32, function: &str, kind: CallKind, texts: &[&str]) -> Probe {
        Probe {
            id,
            table: "itt".into(),
            api: String::new(),
            function: function.into(),
            kind,
            role: aiprof_testkit::script::built_in_role(function),
            is_ioctl: false,
            values: vec![ValueInfo {
                name: "overwrite".into(),
                format: ValueFormat::Signed(4),
                at_exit: false,
            }],
            data: texts
                .iter()
                .map(|name| DataInfo {
                    name: (*name).into(),
                    format: DataFormat::Text,
                })
                .collect(),
            result: ResultKind::None,
            has_exit: false,
            layout: None,
        }
    }

    /// A process that cannot be: it has no environment.
    const PID: u32 = u32::MAX - 1;

    fn call(probe: u32, overwrite: u64) -> Call {
        let mut values = [0; aiprof_common::MAX_VALUES];
        values[0] = overwrite;
        Call {
            time_ns: 1,
            cpu: 0,
            pid: PID,
            tid: PID,
            probe,
            library: 1,
            stack: 0,
            sp: 0x1000,
            around_ns: 0,
            result: 0,
            unread: 0,
            flags: 0,
            values,
        }
    }

    fn text(probe: u32, tag: u8, text: &str) -> CallData {
        CallData {
            time_ns: 1,
            pid: PID,
            tid: PID,
            probe,
            tag,
            unread: false,
            offset: 0,
            total: 0,
            bytes: text.into(),
        }
    }

    /// Conditional collection behind a tracker.
    struct Watch {
        tracker: Tracker,
        all: Conditional,
    }

    impl Watch {
        fn probe(&mut self, probe: &Probe) {
            let nobody = &mut |_: &Tracked<'_>| {};
            self.tracker.apply(&Event::Probe(probe.clone()), nobody);
        }

        fn call(&mut self, call: &Call) -> bool {
            self.all.call(&self.tracker.view(call).unwrap())
        }

        fn data(&mut self, data: &CallData) -> bool {
            self.all.data(&self.tracker.view_data(data).unwrap())
        }
    }

    fn conditional() -> Watch {
        let mut all = Watch {
            tracker: Tracker::default(),
            all: Conditional::default(),
        };
        for (id, name) in [(0, "__itt_pause_init_3_0"), (1, "__itt_resume_init_3_0")] {
            all.probe(&probe(id, name, CallKind::Control, &[]));
        }
        all.probe(&probe(2, "setenv", CallKind::Control, &["name", "value"]));
        all.probe(&probe(3, "unsetenv", CallKind::Control, &["name"]));
        all.probe(&probe(4, "putenv", CallKind::Control, &["assignment"]));
        all.probe(&probe(5, "launch", CallKind::Launch, &[]));
        all.probe(&probe(6, "create", CallKind::Kernel, &[]));
        all
    }

    /// Sets a variable; whether its name and value are kept.
    fn set(all: &mut Watch, name: &str, value: &str, overwrite: u64) -> [bool; 2] {
        all.call(&call(2, overwrite));
        [all.data(&text(2, 0, name)), all.data(&text(2, 1, value))]
    }

    #[test]
    fn no_other_variable_is_kept() {
        let mut all = conditional();
        assert_eq!(set(&mut all, VARIABLE, "1", 1), [true, true]);
        assert_eq!(set(&mut all, "API_TOKEN", "s3cret", 1), [false, false]);
        assert_eq!(set(&mut all, VARIABLE, "0", 1), [true, true]);
        assert!(!all.data(&text(4, 0, "API_TOKEN=s3cret")));
        assert!(!all.data(&text(4, 0, "PTI_ENABLE_COLLECTION_TOKEN=s3cret")));
        assert!(!all.data(&text(3, 0, "API_TOKEN")));
        assert!(all.data(&text(4, 0, "PTI_ENABLE_COLLECTION=1")));
        assert!(all.data(&text(3, 0, VARIABLE)));
        // What came in part may be anything.
        let part = CallData {
            total: 100,
            ..text(2, 1, "s3c")
        };
        all.call(&call(2, 1));
        assert!(!all.data(&part));
        // A value without its name: the name was lost.
        all.call(&call(2, 1));
        assert!(!all.data(&text(2, 1, "s3cret")));
    }

    #[test]
    fn the_variable_counts_until_a_function_is_called() {
        let mut all = conditional();
        assert!(!all.call(&call(5, 0)), "unset is off");
        assert!(all.call(&call(6, 0)), "what is created is always seen");
        for (value, on) in [("1", true), ("0", false), ("", true), ("00", false)] {
            set(&mut all, VARIABLE, value, 1);
            assert_eq!(all.call(&call(5, 0)), on, "{value:?}");
        }
        set(&mut all, VARIABLE, "1", 0);
        set(&mut all, "OTHER", "1", 1);
        assert!(!all.call(&call(5, 0)), "not overwritten");
        all.data(&text(4, 0, "PTI_ENABLE_COLLECTION=1"));
        all.data(&text(4, 0, "PTI_ENABLE_COLLECTION_2=0"));
        assert!(all.call(&call(5, 0)));
        all.data(&text(3, 0, VARIABLE));
        assert!(!all.call(&call(5, 0)));
        all.call(&call(1, 0));
        assert!(all.call(&call(5, 0)), "resumed");
        all.call(&call(0, 0));
        set(&mut all, VARIABLE, "1", 1);
        assert!(!all.call(&call(5, 0)), "paused, whatever the variable says");
        assert_eq!(all.all.skipped, 6);
    }

    #[test]
    fn children_inherit_and_programs_begin_anew() {
        let mut all = conditional();
        all.call(&call(1, 0));
        let event = |pid, kind| ProcessEvent {
            time_ns: 1,
            pid,
            tid: pid,
            kind,
        };
        all.all
            .process(&event(PID - 1, ProcessEventKind::Fork { parent: PID }));
        let mut child = call(5, 0);
        child.pid = PID - 1;
        assert!(all.call(&child));
        all.all.process(&event(PID, ProcessEventKind::Exit));
        assert!(!all.call(&call(5, 0)));
    }
}
