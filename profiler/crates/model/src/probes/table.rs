//! Probe tables: which functions of a runtime are probed, and what is read there.
//!
//! [`parse_file`](super::parse_file) makes a [`CheckedTable`] of a TOML file and checks it
//! whole; [`CheckedTable::compile`] makes what the kernel side runs. docs/probes.md
//! describes the files.

use super::glob;
use super::program::{Field, ProbeProgram};
use super::{CallKind, Probe, ProbeRole, ResultKind};
use crate::demangle::demangle;
use aiprof_common::{ProbeSpec, SPEC_EXIT, SPEC_KEEP, SPEC_STACK, SPEC_WORK};
use std::collections::HashMap;

/// A checked table.
#[derive(Clone, Debug, Default)]
pub struct CheckedTable {
    /// Its name: `level-zero`.
    pub name: String,
    /// The API for people: `Level Zero`.
    pub api: String,
    /// What it was tested with; `None`: nothing yet.
    pub tested: Option<String>,
    /// What must be asked for to use it; `None`: it is always used.
    pub only_with: Option<Switch>,
    /// The libraries that have the functions.
    pub libraries: Vec<Library>,
    /// The functions, in the order of the file.
    pub functions: Vec<Function>,
    /// By the name of a function's first argument: the C++ class at or above that of
    /// the object it points at.
    pub objects: HashMap<String, String>,
    /// Where it comes from: a path, or the name of a built-in one.
    pub source: String,
    /// Index in `functions` by exact symbol name.
    pub(super) exact: HashMap<String, usize>,
}

/// A library with functions of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Patterns of its file name, or of its whole path if they have a slash.
    pub files: Vec<String>,
    /// Its place in a chain of nested calls: outer ones have smaller numbers.
    pub layer: u8,
}

impl Library {
    /// Whether a file is this library.
    pub fn is(&self, path: &str) -> bool {
        let file = path.rsplit('/').next().unwrap_or(path);
        self.files.iter().any(|pattern| {
            let name = if pattern.contains('/') { path } else { file };
            glob::matches(pattern, name)
        })
    }
}

/// What the user must ask for to have a table used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// `--conditional-collection`.
    ConditionalCollection,
}

impl Switch {
    /// The option that asks for it.
    pub fn option(self) -> &'static str {
        match self {
            Self::ConditionalCollection => "--conditional-collection",
        }
    }
}

/// Functions that are called, probed and read in the same way.
#[derive(Clone, Debug)]
pub struct Function {
    /// Their symbols: names, or patterns (`*`, `?`).
    pub symbols: Vec<String>,
    /// What a call does.
    pub kind: CallKind,
    /// More of that.
    pub role: Option<ProbeRole>,
    /// What is read at the entry.
    pub args: Vec<Field>,
    /// What is read at the exit.
    pub out: Vec<Field>,
    /// What the return value means.
    pub result: ResultKind,
    /// When the exit is probed.
    pub exit: Exit,
    /// No exception, `longjmp` or cancellation can leave it: a return probe is safe.
    pub nothrow: bool,
    /// Record the caller's stack.
    pub stack: bool,
    /// The function whose address is in the value `function`: it is probed as this symbol.
    /// Without it the text `name` gives the symbol.
    pub hands_out: Option<String>,
    /// Symbols of the functions whose addresses it puts into the array that its
    /// second argument points at, in their order: they are probed then.
    pub fills: Vec<String>,
    /// Only for those who want to see every call: programs call it much more often than
    /// they launch.
    pub detail: bool,
    /// Line of the file.
    pub line: u32,
    /// Without the exit.
    pub(super) entry_only: ProbeProgram,
    /// With it.
    pub(super) full: ProbeProgram,
}

named! {
    /// When the exit of a function is probed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Exit {
        /// Always: what is read there is needed to understand other calls.
        Needed = "needed",
        /// If the end and result of every call are asked for.
        #[default]
        Useful = "useful",
        /// Never.
        Never = "never",
    }
}

/// How much is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exits {
    /// The [needed](Exit::Needed) exits, and no functions of mere
    /// [detail](Function::detail).
    Needed,
    /// These, and the exits of calls that show whether work is done: waits and events, and
    /// calls that give an event by which others know their work.
    Waits,
    /// All functions, and the [useful](Exit::Useful) exits too: exact ends,
    /// durations and results.
    All,
}

/// What a function or a command becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// For the kernel side.
    pub spec: ProbeSpec,
    /// For the reader; its id is 0 until it is registered.
    pub probe: Probe,
    /// The entry needs a sleepable program.
    pub sleepable: bool,
    /// The exit needs a sleepable program.
    pub sleepable_exit: bool,
}

impl Compiled {
    /// `probe` has the values and data of `program`.
    pub(super) fn new(program: &ProbeProgram, symbol: &str, flags: u32, probe: Probe) -> Self {
        Self {
            spec: program.spec(function_id(symbol), flags),
            probe,
            sleepable: program.entry_sleeps(),
            sleepable_exit: program.exit_sleeps(),
        }
    }
}

impl CheckedTable {
    /// The library that a file is; the first that matches.
    pub fn library(&self, path: &str) -> Option<&Library> {
        self.libraries.iter().find(|library| library.is(path))
    }

    /// The function that a symbol is: the one that names it, else the first with a
    /// pattern that matches.
    pub fn function(&self, symbol: &str) -> Option<&Function> {
        if let Some(&index) = self.exact.get(symbol) {
            return self.functions.get(index);
        }
        self.functions.iter().find(|function| {
            let mut patterns = function.symbols.iter().filter(|s| glob::is_pattern(s));
            patterns.any(|pattern| glob::matches(pattern, symbol))
        })
    }

    /// The C++ class of the object which a function's first argument points at, or a class
    /// above it, where the table names one. The function may go on in a virtual function of
    /// that object.
    pub fn object_of(&self, function: &Function) -> Option<&str> {
        let first = function.args.iter().find(|arg| arg.text == "arg0")?;
        self.objects.get(&first.name).map(String::as_str)
    }

    /// The C++ classes at or above those of all objects that functions work on.
    pub fn object_classes(&self) -> Vec<&str> {
        let mut classes: Vec<&str> = self.objects.values().map(String::as_str).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    /// All exact symbol names, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.symbols().filter(|symbol| !glob::is_pattern(symbol))
    }

    /// All symbol patterns, in the order of the file.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.symbols().filter(|symbol| glob::is_pattern(symbol))
    }

    fn symbols(&self) -> impl Iterator<Item = &str> {
        self.functions
            .iter()
            .flat_map(|function| function.symbols.iter().map(String::as_str))
    }

    /// What [`function`](Self::function) becomes where its symbol is `symbol`.
    pub fn compile(&self, function: &Function, symbol: &str, exits: Exits) -> Compiled {
        let has_exit = function.has_exit(exits);
        let program = function.program(exits);
        let mut flags = 0;
        for (wanted, flag) in [
            // Where the time of every call is wanted, so is who called.
            (function.stack || exits == Exits::All, SPEC_STACK),
            (program.keep, SPEC_KEEP),
            (has_exit, SPEC_EXIT),
            (function.kind.is_work(), SPEC_WORK),
        ] {
            flags |= if wanted { flag } else { 0 };
        }
        let probe = Probe {
            layout: None,
            id: 0,
            table: self.name.clone(),
            api: self.api.clone(),
            function: demangle(symbol).into_owned(),
            kind: function.kind,
            role: function.role,
            is_ioctl: false,
            values: program.values.clone(),
            data: program.data.clone(),
            result: function.result,
            has_exit,
        };
        Compiled::new(program, symbol, flags, probe)
    }
}

impl Function {
    /// Whether it is probed at all.
    pub fn is_probed(&self, exits: Exits) -> bool {
        !self.detail || exits == Exits::All
    }

    /// Whether its exit is probed.
    pub fn has_exit(&self, exits: Exits) -> bool {
        match self.exit {
            Exit::Needed => true,
            Exit::Useful => match exits {
                Exits::Needed => false,
                Exits::Waits => {
                    let gives_event = self.out.iter().any(|field| field.name == "event");
                    gives_event || matches!(self.kind, CallKind::Synchronize | CallKind::Event)
                }
                Exits::All => true,
            },
            Exit::Never => false,
        }
    }

    /// What is read.
    pub fn program(&self, exits: Exits) -> &ProbeProgram {
        if self.has_exit(exits) {
            &self.full
        } else {
            &self.entry_only
        }
    }
}

/// [`ProbeSpec::function`] of a symbol: FNV-1a (RFC 9923), 32 bits; never 0.
pub fn function_id(symbol: &str) -> u32 {
    let hash = symbol.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

impl CallKind {
    /// Whether the caller's stack is recorded by default. It is for calls that give the
    /// device work, wait for it, or cost time themselves. It is not for short ones that
    /// prepare or ask, which programs make in great number.
    pub(crate) fn wants_stack(self) -> bool {
        !matches!(
            self,
            Self::Kernel
                | Self::Event
                | Self::Queue
                | Self::Context
                | Self::Resolve
                | Self::Activity
                | Self::Control
                | Self::Range
        )
    }
}

impl ProbeRole {
    /// Whether functions of a kind can have it.
    pub fn is_of(self, kind: CallKind) -> bool {
        use CallKind::{
            Alloc, Compile, Control, Copy, Event, Kernel, Module, Queue, Range, Synchronize,
        };
        match self {
            Self::Retain | Self::Release => matches!(kind, Kernel | Module | Compile | Queue),
            Self::Immediate
            | Self::Close
            | Self::Reset
            | Self::BeginCapture
            | Self::EndCapture
            | Self::Add => kind == Queue,
            Self::Query => kind == Event,
            Self::WaitAll => kind == Synchronize,
            Self::Host | Self::Shared => kind == Alloc,
            Self::Prefetch
            | Self::HostToHost
            | Self::HostToDevice
            | Self::DeviceToHost
            | Self::DeviceToDevice => kind == Copy,
            Self::Pause | Self::Resume | Self::Set | Self::Assign | Self::Unset | Self::Clear => {
                kind == Control
            }
            Self::Push | Self::Pop | Self::Start | Self::Stop | Self::Mark => kind == Range,
        }
    }
}
