//! The truth of stacks, instruction by instruction. A program is stepped with ptrace(2), and a
//! shadow stack of its calls is kept. At random instructions a running aiprof is made to sample it.
//! Each stack must be the true chain of calls, begin as it and be marked as cut, or go on behind a
//! mark "guessed".
//!
//! No code is changed: the thread is stopped by a signal before it executes anything,
//! and as it leaves its CPU for that, aiprof's program runs and sees its registers.

mod go;
mod judge;
mod sampler;
mod stack;
mod tracee;

pub use go::GoRuntime;
pub use judge::{Account, Sampled, judge};

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aiprof_common::ADDR_EXACT;
use anyhow::Context as _;

use crate::aiprof::binary;
use crate::child::Child;
use sampler::{Program, Sampler};
use stack::{Arrival, Shadow};
use tracee::{Stop, Tracee};

/// Instructions stepped in a row.
const STRIDE: u32 = 5_000;
/// Most calls that run freely between two strides.
const SKIPS: u64 = 60;
/// Instructions without a call after which a function is left instead.
const QUIET: u64 = 300;
/// How near to its start a program is always stepped.
const NEVER_SKIPPED: usize = 3;
/// How long a call that runs freely may take.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a program may take to its entry.
const START: Duration = Duration::from_secs(20);
/// Most times that a program is started anew.
const MAX_RUNS: u64 = 400;
/// What one instruction moves the stack pointer by at most, on one stack.
const MAX_FRAME: u64 = 1 << 20;
/// Longest instruction.
const LONGEST: u64 = 15;

/// An aiprof that records the whole machine, once a second, and what we have it sample.
pub struct Recorder {
    aiprof: Child,
    program: Program,
    file: PathBuf,
}

impl Recorder {
    /// Starts it; the capture goes into a folder.
    ///
    /// # Errors
    /// When it does not start to record.
    pub fn start(dir: &Path) -> anyhow::Result<Self> {
        let file = dir.join("shadow.aiprof");
        let mut command = Command::new(binary()?);
        command
            .args(["-F", "1", "--no-kernel", "--no-devices", "-d", "7200", "-o"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut aiprof = Child::start(&mut command)?;
        let start = Instant::now();
        let program = loop {
            if let Some(program) = Program::find(aiprof.pid())? {
                break program;
            }
            anyhow::ensure!(aiprof.is_running(), "aiprof has ended");
            anyhow::ensure!(start.elapsed() < START, "aiprof does not start");
            std::thread::sleep(Duration::from_millis(20));
        };
        // It knows what runs when its own timers do.
        std::thread::sleep(Duration::from_secs(1));
        Ok(Self {
            aiprof,
            program,
            file,
        })
    }

    /// Ends the recording; its file.
    ///
    /// # Errors
    /// When it fails.
    pub fn finish(mut self) -> anyhow::Result<PathBuf> {
        // What was sampled last arrives.
        std::thread::sleep(Duration::from_millis(500));
        self.aiprof.signal("INT")?;
        let status = self.aiprof.wait(Duration::from_secs(60))?;
        anyhow::ensure!(status.success(), "aiprof: {status}");
        Ok(self.file)
    }
}

/// The program that is stepped, and how.
pub struct Plan<'a> {
    /// Its name in reports.
    pub name: &'a str,
    /// Makes the command.
    pub command: &'a dyn Fn() -> Command,
    /// Stops to make.
    pub stops: usize,
    /// Instructions between two, on average.
    pub gap: u64,
    /// The program is one of Go.
    pub go: Option<&'a GoRuntime>,
    /// Seed of the random choices.
    pub seed: u64,
}

/// A stop.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The thread.
    pub tid: u32,
    /// CLOCK_MONOTONIC, ns.
    pub from: u64,
    /// Likewise.
    pub to: u64,
    /// The true chain, leaf first, marked as aiprof's.
    pub chain: Vec<u64>,
    /// Which of [`Truth::maps`] has its files.
    pub run: usize,
}

/// All stops of a program.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// The stops, in order.
    pub stops: Vec<Stopped>,
    /// `/proc/PID/maps` of each time that it ran.
    pub maps: Vec<String>,
    /// Instructions stepped.
    pub steps: u64,
}

/// Steps a program until it has been stopped as often as planned.
///
/// # Errors
/// When it cannot be stepped, or ends too soon too often.
pub fn stops(recorder: &Recorder, plan: &Plan<'_>) -> anyhow::Result<Truth> {
    let mut truth = Truth::default();
    let mut random = Random(plan.seed | 1);
    let mut long = HashSet::new();
    for _ in 0..MAX_RUNS {
        let mut run = Run::start(recorder, plan, &mut random, &mut long, &mut truth)?;
        let result = run.walk();
        run.end();
        result.with_context(|| plan.name.to_owned())?;
        if truth.stops.len() >= plan.stops {
            return Ok(truth);
        }
    }
    anyhow::bail!("{}: only {} stops", plan.name, truth.stops.len())
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n.max(1)
    }
}

/// One run of the program.
struct Run<'a> {
    plan: &'a Plan<'a>,
    tracee: Tracee,
    sampler: Sampler,
    shadow: Shadow,
    registers: libc::user_regs_struct,
    random: &'a mut Random,
    /// Functions that run for long, so that they are stepped into.
    long: &'a mut HashSet<u64>,
    truth: &'a mut Truth,
    /// Signals that are still to be taken.
    signals: VecDeque<i32>,
}

/// Kinds of instructions that matter here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Call,
    SystemCall,
    Other,
}

impl<'a> Run<'a> {
    fn start(
        recorder: &Recorder,
        plan: &'a Plan<'a>,
        random: &'a mut Random,
        long: &'a mut HashSet<u64>,
        truth: &'a mut Truth,
    ) -> anyhow::Result<Self> {
        let mut tracee = Tracee::start(&mut (plan.command)())?;
        let entry = tracee.entry()?;
        let stop = tracee.run_to(entry, START)?;
        anyhow::ensure!(stop == Stop::Trap, "{}: {stop:?} at its entry", plan.name);
        tracee.forget_code();
        let registers = tracee.registers()?;
        Ok(Self {
            plan,
            sampler: Sampler::new(&recorder.program, tracee.pid())?,
            shadow: Shadow::new(registers.rsp, plan.go.is_some()),
            tracee,
            registers,
            random,
            long,
            truth,
            signals: VecDeque::new(),
        })
    }

    /// Steps to the program's end, or to the last stop.
    fn walk(&mut self) -> anyhow::Result<()> {
        let mut stride = STRIDE;
        let (mut skips, mut quiet) = (0, 0);
        let mut gap = self.next_gap();
        while self.truth.stops.len() < self.plan.stops {
            let Some(called) = self.step()? else {
                return Ok(());
            };
            if skips > 0 {
                quiet = if called { 0 } else { quiet + 1 };
                if called && self.may_skip() || quiet > QUIET && self.may_leave() {
                    skips -= 1;
                    if !self.skip()? {
                        return Ok(());
                    }
                } else if quiet > 2 * QUIET {
                    skips = 0;
                }
                continue;
            }
            gap = gap.saturating_sub(1);
            if gap == 0 {
                gap = self.next_gap();
                if !self.sample()? {
                    return Ok(());
                }
            }
            stride -= 1;
            if stride == 0 {
                stride = STRIDE;
                skips = self.random.below(SKIPS);
            }
        }
        Ok(())
    }

    fn next_gap(&mut self) -> u64 {
        1 + self.random.below(2 * self.plan.gap)
    }

    /// One instruction; whether it was a call. `None`: the program has ended, its thread
    /// waits for others, or what it runs now began elsewhere.
    fn step(&mut self) -> anyhow::Result<Option<bool>> {
        let kind = self.kind();
        let before = self.registers;
        let signal = self.signals.pop_front().unwrap_or(0);
        let stop = match kind {
            Kind::SystemCall => self.tracee.step_call(signal, PATIENCE)?,
            Kind::Call | Kind::Other => self.tracee.step(signal)?,
        };
        match stop {
            Stop::Trap => {}
            Stop::Signal(libc::SIGSTOP) => return Ok(Some(false)),
            Stop::Signal(other) => {
                self.signals.push_back(other);
                return Ok(Some(false));
            }
            Stop::Exited | Stop::Runs => return Ok(None),
        }
        self.truth.steps += 1;
        self.registers = self.tracee.registers()?;
        let after = self.registers;
        if signal != 0 && after.rdi == signal as u64 && after.rip != before.rip {
            // The handler's first instruction, if there is one.
            let restorer = self.tracee.word(after.rsp)?;
            if after.rsp.abs_diff(before.rsp) > 400 {
                self.shadow.signalled(before.rip, after.rsp, restorer);
                return Ok(Some(false));
            }
        }
        if kind == Kind::SystemCall {
            self.tracee.forget_code();
        }
        if kind == Kind::Call && after.rsp == before.rsp.wrapping_sub(8) {
            let address = self.tracee.word(after.rsp)?;
            let is_call = address.wrapping_sub(before.rip) <= LONGEST;
            // A call to the next instruction only asks where it is.
            if is_call && after.rip != address {
                let last = self
                    .plan
                    .go
                    .is_some_and(|go| go.is_last(before.rip, after.rip));
                match last {
                    true => self.shadow.called_last(after.rsp, address),
                    false => self.shadow.called(after.rsp, address),
                }
                return Ok(Some(true));
            }
        }
        if let Some(go) = self.plan.go
            && after.rsp.abs_diff(before.rsp) > MAX_FRAME
        {
            let owner = self.stack_end()?;
            // C calls Go on a goroutine's stack, and all else is called from there.
            let is_call = go.is_callback(before.rip) == owner.is_some();
            self.shadow.arrives(Arrival { owner, is_call });
        }
        self.shadow.moved(after.rsp);
        if self.shadow.is_lost() {
            return Ok(None);
        }
        if self.shadow.begins() {
            let address = self.tracee.word(after.rsp)?;
            self.shadow.return_of_first(address);
        }
        Ok(Some(false))
    }

    /// What the next instruction is.
    fn kind(&mut self) -> Kind {
        let mut at = self.registers.rip;
        for _ in 0..LONGEST {
            let Some(byte) = self.tracee.code(at) else {
                break;
            };
            let mut next = || self.tracee.code(at + 1);
            match byte {
                // Prefixes.
                0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3 => at += 1,
                0xe8 => return Kind::Call,
                0xff if next().is_some_and(|byte| byte >> 3 & 7 == 2) => return Kind::Call,
                0x0f if next() == Some(0x05) => return Kind::SystemCall,
                _ => break,
            }
        }
        Kind::Other
    }

    fn may_skip(&self) -> bool {
        self.shadow.depth() > NEVER_SKIPPED && !self.long.contains(&self.registers.rip)
    }

    /// Whether the function that runs may be left.
    fn may_leave(&self) -> bool {
        let to = self.shadow.addresses().next();
        self.shadow.depth() > NEVER_SKIPPED
            && to.is_some_and(|to| !self.long.contains(&(to & !ADDR_EXACT)))
    }

    /// Lets the function that was just called run to its return. `false`: it does not.
    fn skip(&mut self) -> anyhow::Result<bool> {
        let function = self.registers.rip;
        let (Some(slot), Some(address)) = (self.shadow.last_slot(), self.shadow.addresses().next())
        else {
            return Ok(true);
        };
        let address = address & !ADDR_EXACT;
        let (mut slot, mut end) = (slot, self.stack_end()?);
        loop {
            match self.tracee.run_to(address, PATIENCE)? {
                Stop::Trap => {}
                Stop::Runs => {
                    self.long.extend([function, address]);
                    return Ok(false);
                }
                Stop::Exited | Stop::Signal(_) => return Ok(false),
            }
            self.registers = self.tracee.registers()?;
            if self.registers.rip != address {
                return Ok(false);
            }
            // It may have grown its stack meanwhile.
            if let (Some((owner, before)), Some((now, after))) = (end, self.stack_end()?)
                && owner == now
                && before != after
            {
                let by = after.wrapping_sub(before);
                slot = slot.wrapping_add(by);
                end = Some((now, after));
                self.shadow.copied(by);
            }
            if self.registers.rsp > slot {
                break;
            }
            // Another call from there, further down.
            if self.tracee.step(0)? != Stop::Trap {
                return Ok(false);
            }
        }
        self.tracee.forget_code();
        self.shadow.moved(self.registers.rsp);
        Ok(true)
    }

    /// In Go programs: the goroutine on whose stack the thread is, and where that ends. `None`: it
    /// is on the system's stack.
    fn stack_end(&self) -> anyhow::Result<Option<(u64, u64)>> {
        let Some(go) = self.plan.go else {
            return Ok(None);
        };
        let registers = self.tracee.registers()?;
        let goroutine = self.tracee.word(registers.fs_base.wrapping_sub(8));
        let Some(goroutine) = goroutine.ok().filter(|&g| g != 0 && !go.is_first(g)) else {
            return Ok(None);
        };
        let (start, end) = (
            self.tracee.word(goroutine)?,
            self.tracee.word(goroutine + 8)?,
        );
        let inside = start < registers.rsp && registers.rsp <= end;
        Ok(inside.then_some((goroutine, end)))
    }

    /// Has aiprof sample the thread where it is. `false`: the program has ended.
    fn sample(&mut self) -> anyhow::Result<bool> {
        let chain = [self.registers.rip].into_iter();
        let chain = chain.chain(self.shadow.addresses()).collect();
        let from = now();
        self.sampler.switch(true)?;
        self.tracee.signal(libc::SIGSTOP)?;
        self.tracee.go_on(0)?;
        loop {
            match self.tracee.wait()? {
                Stop::Signal(libc::SIGSTOP) => break,
                Stop::Signal(other) => self.signals.push_back(other),
                Stop::Trap => {}
                Stop::Exited | Stop::Runs => return Ok(false),
            }
            self.tracee.go_on(0)?;
        }
        self.sampler.switch(false)?;
        let at = self.tracee.registers()?;
        anyhow::ensure!(at.rip == self.registers.rip, "it went on by itself");
        self.truth.stops.push(Stopped {
            tid: self.tracee.pid().cast_unsigned(),
            from,
            to: now(),
            chain,
            run: self.truth.maps.len(),
        });
        Ok(true)
    }

    /// Keeps what reports need.
    fn end(self) {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.tracee.pid()));
        self.truth.maps.push(maps.unwrap_or_default());
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
