//! A program under ptrace(2), one instruction at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// `u_debugreg` in `struct user` (`arch/x86/include/asm/user_64.h`).
const DEBUG_REGISTERS: usize = std::mem::offset_of!(libc::user, u_debugreg);
/// Debug register 7: register 0 breaks on execution, in this thread.
const BREAK_ON_0: u64 = 1;
/// `ADDR_NO_RANDOMIZE`.
const NO_RANDOMIZE: libc::c_ulong = 0x004_0000;
/// Auxiliary vector: the program's first instruction.
const AT_ENTRY: u64 = 9;
const PAGE: u64 = 4096;
/// How often it is looked for a stop that need not come.
const POLL: Duration = Duration::from_micros(100);

/// Why a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// After a step, or at a breakpoint.
    Trap,
    /// Before it takes a signal.
    Signal(i32),
    /// It is gone.
    Exited,
    /// It has not, in the time that it was given.
    Runs,
}

/// A program that waits to be stepped. It is killed when dropped.
pub(super) struct Tracee {
    child: Child,
    memory: File,
    code: HashMap<u64, Option<Box<[u8; PAGE as usize]>>>,
}

fn check(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Tracee {
    /// Starts a program and stops it before its first instruction, the dynamic
    /// linker's.
    ///
    /// # Errors
    /// When it cannot be started or traced.
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Self> {
        // SAFETY: both calls only change the new process, and allocate nothing.
        unsafe {
            command.pre_exec(|| {
                libc::personality(NO_RANDOMIZE);
                check(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0))
            });
        }
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        let memory = File::open(format!("/proc/{}/mem", child.id()))?;
        let mut tracee = Self {
            child,
            memory,
            code: HashMap::new(),
        };
        // SAFETY: options of a process that we trace.
        let first = tracee.wait()?;
        anyhow::ensure!(first == Stop::Signal(libc::SIGTRAP) || first == Stop::Trap);
        tracee.request(libc::PTRACE_SETOPTIONS, 0, libc::PTRACE_O_EXITKILL as u64)?;
        Ok(tracee)
    }

    /// Its process id, and that of its first thread.
    #[must_use]
    pub(super) fn pid(&self) -> libc::pid_t {
        self.child.id().cast_signed()
    }

    fn request(&self, request: libc::c_uint, address: u64, data: u64) -> io::Result<()> {
        // SAFETY: requests that take numbers, for a process that we trace.
        check(unsafe { libc::ptrace(request, self.pid(), address, data) })
    }

    /// Waits for its next stop.
    ///
    /// # Errors
    /// When there is nothing to wait for.
    pub(super) fn wait(&mut self) -> io::Result<Stop> {
        self.wait_with(libc::__WALL)
    }

    fn wait_with(&mut self, flags: i32) -> io::Result<Stop> {
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status.
        let pid = unsafe { libc::waitpid(self.pid(), &raw mut status, flags) };
        Ok(match pid {
            -1 => return Err(io::Error::last_os_error()),
            0 => Stop::Runs,
            _ if !libc::WIFSTOPPED(status) => Stop::Exited,
            _ => match libc::WSTOPSIG(status) {
                libc::SIGTRAP => Stop::Trap,
                signal => Stop::Signal(signal),
            },
        })
    }

    /// Waits for its next stop, not for long.
    fn wait_for(&mut self, most: Duration) -> io::Result<Stop> {
        let start = Instant::now();
        loop {
            let stop = self.wait_with(libc::__WALL | libc::WNOHANG)?;
            if stop != Stop::Runs || start.elapsed() > most {
                return Ok(stop);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Executes one instruction, or enters the handler of a signal.
    ///
    /// # Errors
    /// ptrace(2)'s.
    pub(super) fn step(&mut self, signal: i32) -> io::Result<Stop> {
        self.request(libc::PTRACE_SINGLESTEP, 0, signal as u64)?;
        self.wait()
    }

    /// Executes a system call, which may wait for others: at most so long.
    ///
    /// # Errors
    /// ptrace(2)'s.
    pub(super) fn step_call(&mut self, signal: i32, most: Duration) -> io::Result<Stop> {
        self.request(libc::PTRACE_SINGLESTEP, 0, signal as u64)?;
        self.wait_for(most)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// ptrace(2)'s.
    pub(super) fn go_on(&mut self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_CONT, 0, signal as u64)
    }

    /// Lets it go on to an address, at most so long. Signals are taken meanwhile.
    ///
    /// # Errors
    /// ptrace(2)'s.
    pub(super) fn run_to(&mut self, address: u64, most: Duration) -> io::Result<Stop> {
        self.debug_register(0, address)?;
        self.debug_register(7, BREAK_ON_0)?;
        let mut signal = 0;
        let stop = loop {
            self.go_on(signal)?;
            match self.wait_for(most)? {
                Stop::Signal(other) => signal = other,
                stop => break stop,
            }
        };
        if stop == Stop::Trap {
            self.debug_register(7, 0)?;
        }
        Ok(stop)
    }

    fn debug_register(&self, number: usize, value: u64) -> io::Result<()> {
        let place = DEBUG_REGISTERS + 8 * number;
        self.request(libc::PTRACE_POKEUSER, place as u64, value)
    }

    /// Its registers.
    ///
    /// # Errors
    /// ptrace(2)'s.
    pub(super) fn registers(&self) -> io::Result<libc::user_regs_struct> {
        // SAFETY: plain numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one such structure.
        check(unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGS,
                self.pid(),
                null_mut::<libc::c_void>(),
                &raw mut registers,
            )
        })?;
        Ok(registers)
    }

    /// 8 bytes of its memory.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A byte of its code. Code is taken not to change, but by system calls.
    #[must_use]
    pub(super) fn code(&mut self, address: u64) -> Option<u8> {
        let page = address & !(PAGE - 1);
        let memory = &self.memory;
        let bytes = self.code.entry(page).or_insert_with(|| {
            let mut bytes = Box::new([0; PAGE as usize]);
            memory.read_exact_at(bytes.as_mut(), page).ok()?;
            Some(bytes)
        });
        bytes.as_ref()?.get((address - page) as usize).copied()
    }

    /// Forgets what was read of its code.
    pub(super) fn forget_code(&mut self) {
        self.code.clear();
    }

    /// The program's own first instruction.
    ///
    /// # Errors
    /// When the Linux kernel does not report it.
    pub(super) fn entry(&self) -> anyhow::Result<u64> {
        let auxv = std::fs::read(format!("/proc/{}/auxv", self.pid()))?;
        let mut words = auxv.chunks_exact(8).map(|word| {
            let bytes = word.try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        });
        while let (Some(key), Some(value)) = (words.next(), words.next()) {
            if key == AT_ENTRY {
                return Ok(value);
            }
        }
        anyhow::bail!("no AT_ENTRY")
    }

    /// Sends its first thread a signal.
    ///
    /// # Errors
    /// tgkill(2)'s.
    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: numbers.
        check(unsafe { libc::syscall(libc::SYS_tgkill, self.pid(), self.pid(), signal) })
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // It may be gone already; either way it is afterwards.
        let _ = self.child.kill();
        while !matches!(self.wait(), Ok(Stop::Exited) | Err(_)) {
            let _ = self.child.kill();
        }
    }
}
