//! A library, programs that call it, and a recording of both.

use aiprof::{
    collect::{
        config::{ProbeConfig, RecordConfig},
        runtime::Tally,
        session::{Keep, Session},
    },
    probes::{Probe, ProbedFile, Tables},
    profile::Losses,
    process::ProcessTable,
    wire::{Call, Event},
};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

/// The functions of `libaiproftest.so`.
pub(super) const LIBRARY: &str = r#"
    #include <stdint.h>
    #include <string.h>
    volatile int sink;
    int tst_launch(void *list, void *kernel, uint32_t groups, void *event) {
        if (!list) return 7;
        for (uint32_t i = 0; i < groups; i++) sink += (int)i;
        return 0;
    }
    long tst_seventh(long a, long b, long c, long d, long e, long f, long g) {
        sink++;
        return a + g;
    }
    int tst_name(void *handle, const char *name, void **out) {
        *out = (char *)handle + strlen(name);
        return 0;
    }
    static int hidden(int a) { sink++; return a + 1; }
    int tst_resolve(const char *name, void **out) {
        if (strcmp(name, "tst_hidden")) return 1;
        *out = (void *)hidden;
        return 0;
    }
"#;

/// Its table.
pub(super) const TABLE: &str = r#"
    name = "test"
    api = "Test"
    result = "zero-ok"

    [[library]]
    files = ["libaiproftest*.so*"]
    layer = 1

    [[function]]
    symbols = ["tst_launch"]
    kind = "launch"
    args = { list = "arg0", kernel = "arg1", groups_x = "u32 arg2" }

    [[function]]
    symbols = ["tst_seventh"]
    kind = "copy"
    result = "number"
    args = { first = "arg0", last = "u64 stack0" }

    [[function]]
    symbols = ["tst_name"]
    kind = "kernel"
    exit = "needed"
    args = { name = "text arg1" }
    out = { kernel = "[arg2]" }

    [[function]]
    symbols = ["tst_resolve"]
    kind = "resolve"
    exit = "needed"
    args = { name = "text arg0" }
    out = { function = "[arg1]" }

    [[function]]
    symbols = ["tst_hidden"]
    kind = "launch"
    args = { groups_x = "u32 arg0" }
"#;

/// A folder to build in.
pub(super) struct Workshop {
    dir: tempfile::TempDir,
}

impl Workshop {
    /// `None`, with a message, where recording or compiling is not possible.
    pub(super) fn new(test: &str) -> Option<Self> {
        let missing = if !rustix::process::geteuid().is_root() {
            Some("needs root")
        } else if Command::new("cc").arg("--version").output().is_err() {
            Some("needs a C compiler")
        } else {
            None
        };
        if let Some(missing) = missing {
            println!("skipped: {test}: {missing}");
            return None;
        }
        Some(Self {
            dir: tempfile::tempdir().unwrap(),
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn compile(&self, source: &str, output: &str, flags: &[&str]) -> PathBuf {
        self.compile_with("cc", source, output, flags)
    }

    pub(super) fn compile_with(
        &self,
        compiler: &str,
        source: &str,
        output: &str,
        flags: &[&str],
    ) -> PathBuf {
        let extension = if compiler == "c++" { "cpp" } else { "c" };
        let input = self.path(&format!("{output}.{extension}"));
        fs::write(&input, source).unwrap();
        let path = self.path(output);
        let built = Command::new(compiler)
            .args(["-O2", "-g", "-o"])
            .args([&path, &input])
            .args(flags)
            .current_dir(self.dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{text}");
        path
    }

    /// The library.
    pub(super) fn library(&self) -> PathBuf {
        self.compile(LIBRARY, "libaiproftest.so", &["-shared", "-fPIC"])
    }

    /// A program that is linked with it and finds it in this folder.
    pub(super) fn program(&self, source: &str) -> PathBuf {
        self.library();
        let flags = ["-L.", "-laiproftest", "-lm", "-Wl,-rpath,$ORIGIN"];
        self.compile(source, "program", &flags)
    }
}

/// The configuration of a recording of calls.
pub(super) fn config(exact: bool, command: &[&Path]) -> RecordConfig {
    let mut tables = Tables::default();
    tables.add("test.toml", TABLE).unwrap();
    RecordConfig {
        probes: Some(ProbeConfig {
            tables: tables.into(),
            exact_call_times: exact,
            late_libraries: true,
            command: command.iter().map(Into::into).collect(),
            ..ProbeConfig::default()
        }),
        ..RecordConfig::default()
    }
}

/// What a recording saw.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) events: Vec<Event>,
    pub(super) tally: Tally,
    pub(super) losses: Losses,
    /// How long it took to start, and to end.
    pub(super) start: Duration,
    pub(super) end: Duration,
}

/// Records while `during` runs on another thread.
pub(super) fn record<T: Send>(
    config: &RecordConfig,
    during: impl FnOnce() -> T + Send,
) -> (Seen, T) {
    if std::env::var_os("AIPROF_TEST_LOG").is_some() {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        let _ = log.with_writer(std::io::stderr).try_init();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let events = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&events);
    let begun = std::time::Instant::now();
    let mut session = runtime.block_on(async { Session::start(config, Keep::Nothing).unwrap() });
    session.on_events(Box::new(move |event: &Event, _: &ProcessTable| {
        sink.borrow_mut().push(event.clone())
    }));
    let prepared = runtime.block_on(session.prepare(std::future::pending()));
    prepared.unwrap();
    let start = begun.elapsed();
    let (done, ended) = tokio::sync::oneshot::channel();
    let given = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let given = during();
            // Whatever is in flight arrives.
            std::thread::sleep(Duration::from_millis(20));
            let _ = done.send(());
            given
        });
        let stop = async {
            let _ = ended.await;
        };
        runtime.block_on(session.run(stop, |_| {})).unwrap();
        thread.join().unwrap()
    });
    let begun = std::time::Instant::now();
    let finished = runtime.block_on(async { session.finish().unwrap() });
    let seen = Seen {
        events: events.take(),
        tally: finished.probes.unwrap_or_default(),
        losses: finished.profile.losses.clone(),
        start,
        end: begun.elapsed(),
    };
    (seen, given)
}

impl Seen {
    pub(super) fn probes(&self) -> impl Iterator<Item = &Probe> {
        self.events.iter().filter_map(|event| match event {
            Event::Probe(probe) => Some(probe),
            _ => None,
        })
    }

    pub(super) fn files(&self) -> Vec<&ProbedFile> {
        let files = self.events.iter().filter_map(|event| match event {
            Event::ProbedFile(file) => Some(file),
            _ => None,
        });
        files.collect()
    }

    pub(super) fn probe(&self, function: &str) -> &Probe {
        let mut probes = self.probes();
        let found = probes.find(|probe| probe.function == function);
        found.unwrap_or_else(|| panic!("{function} is not probed"))
    }

    /// Entries or exits of a function.
    pub(super) fn calls(&self, function: &str, exit: bool) -> Vec<&Call> {
        let Some(id) = self.probes().find(|p| p.function == function).map(|p| p.id) else {
            return Vec::new();
        };
        let calls = self.events.iter().filter_map(|event| match event {
            Event::Call(call) if call.probe == id && call.is_exit() == exit => Some(call),
            _ => None,
        });
        calls.collect()
    }

    /// Entries by process.
    pub(super) fn entries_by_process(&self, function: &str) -> BTreeMap<u32, usize> {
        let mut by_process = BTreeMap::new();
        for call in self.calls(function, false) {
            *by_process.entry(call.pid).or_default() += 1;
        }
        by_process
    }

    /// The texts with this name of calls of a function.
    pub(super) fn texts(&self, function: &str, name: &str) -> Vec<String> {
        let probe = self.probe(function);
        let tag = probe.tag(name).unwrap();
        let text = |event: &Event| match event {
            Event::CallData(data) if data.probe == probe.id && data.tag == tag => {
                Some(String::from_utf8_lossy(&data.bytes).into_owned())
            }
            _ => None,
        };
        self.events.iter().filter_map(text).collect()
    }
}

/// Runs a program to its end.
pub(super) fn run(program: &Path, args: &[&str]) -> String {
    let done = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {text}", program.display());
    String::from_utf8(done.stdout).unwrap()
}
