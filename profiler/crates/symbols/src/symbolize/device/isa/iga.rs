//! Intel's disassembler `libiga64`, loaded at run time where it is installed.
//!
//! Its "kernel view" interface (`kv.h`, `iga.h` of the public sources) is C. Only the functions
//! that give an instruction's length and syntax are declared here. The own table first measures all
//! code that the library gets: the library reads through a null pointer where code is shorter than
//! 8 bytes. Beyond that, half a million damaged kernels made no version of it fail (1.0.12504 and
//! 2.40.14).

use super::{Decoded, MAX_CODE_BYTES, Platform, decode};
use aiprof_system::files::rights;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

/// Names to look for, the newest interface first.
const NAMES: [&str; 3] = ["libiga64.so.2", "libiga64.so.1", "libiga64.so"];

/// Where distributions install libraries.
const DIRECTORIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib/x86_64-linux-gnu",
    "/usr/local/lib",
];

/// Code beyond this is not handed over: the library keeps each instruction of it
/// in memory (measured: 90 times its size).
const MAX_IGA_BYTES: usize = 1 << 20;
const _: () = assert!(MAX_IGA_BYTES <= MAX_CODE_BYTES);

/// Longest syntax of one instruction; longer is cut off.
const MAX_SYNTAX: usize = 1024;
const MAX_MESSAGE: usize = 512;
const MAX_PLATFORMS: usize = 64;

/// As `iga64` prints: `bfn` with its truth table as an expression.
const FORMAT: u32 = 0x80;

/// `iga_status_t`.
const IGA_SUCCESS: c_int = 0;

type KernelView = c_void;
type Create = unsafe extern "C" fn(
    platform: c_int,
    code: *const c_void,
    code_len: usize,
    status: *mut c_int,
    message: *mut c_char,
    message_capacity: usize,
    swsb_encoding: c_uint,
) -> *mut KernelView;
type Delete = unsafe extern "C" fn(*mut KernelView);
type Size = unsafe extern "C" fn(*const KernelView, pc: i32) -> i32;
type Syntax = unsafe extern "C" fn(
    *const KernelView,
    pc: i32,
    text: *mut c_char,
    text_capacity: usize,
    format: u32,
    labeler: *const c_void,
    labeler_environment: *mut c_void,
) -> usize;
type Platforms = unsafe extern "C" fn(bytes: usize, *mut c_int, needed: *mut usize) -> c_int;

/// Why the library gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum IgaError {
    /// Not installed, or not loadable; the loader's words.
    #[error("libiga64 cannot be loaded: {0}")]
    Load(String),
    /// Another version: it lacks a function.
    #[error("libiga64 has no function {0}")]
    Function(&'static str),
    /// The library is older than the device.
    #[error("libiga64 does not support {0:?}")]
    Platform(Platform),
    /// More than `MAX_IGA_BYTES` of code.
    #[error("{0} bytes of code are too many for libiga64")]
    TooLarge(usize),
    /// The own table found instructions that it cannot measure.
    #[error("{0} instructions are unknown")]
    Unknown(u32),
    /// The library's message.
    #[error("libiga64: {0}")]
    Decode(String),
    /// The library sees an instruction of another length at this offset.
    #[error("libiga64 and aiprof find instructions of different lengths at offset {0:#x}")]
    Disagrees(u32),
}

/// `libiga64`. It stays loaded until the process ends.
#[derive(Debug)]
pub struct Iga {
    create: Create,
    delete: Delete,
    size: Size,
    syntax: Syntax,
    platforms: Vec<c_int>,
}

impl Iga {
    /// Loads the library from where the system keeps its libraries.
    ///
    /// # Errors
    /// It is not installed, or lacks a function.
    pub fn load() -> Result<Self, IgaError> {
        if rights::is_privileged() {
            return Self::load_roots();
        }
        let mut error = None;
        for name in NAMES {
            match Self::load_from(Path::new(name)) {
                Ok(iga) => return Ok(iga),
                Err(e) => error = error.or(Some(e)),
            }
        }
        Err(error.unwrap_or(IgaError::Load(String::new())))
    }

    /// Loads the library for a process with privileges: from where distributions install it, and
    /// only if root alone can change it. The loader's environment and cache have no effect.
    fn load_roots() -> Result<Self, IgaError> {
        let mut error =
            IgaError::Load("not installed, or users other than root can change it".into());
        for name in NAMES {
            for dir in DIRECTORIES {
                let path = Path::new(dir).join(name);
                let Some(real) = rights::roots_alone(&path) else {
                    continue;
                };
                match Self::load_from(&real) {
                    Ok(iga) => return Ok(iga),
                    Err(e) => error = e,
                }
            }
        }
        Err(error)
    }

    /// Loads the library from a file; a name without a slash is looked for where
    /// the system keeps its libraries.
    ///
    /// # Errors
    /// It cannot be loaded, or lacks a function.
    pub(crate) fn load_from(path: &Path) -> Result<Self, IgaError> {
        let library = IgaLibrary::open(path)?;
        // SAFETY: each type is the function's in kv.h and iga.h, whose C
        // interface has kept it in all versions that export `kv_create`.
        unsafe {
            let list: Platforms =
                std::mem::transmute(library.function(c"iga_platforms_list", "iga_platforms_list")?);
            Ok(Self {
                create: std::mem::transmute::<NonNull<c_void>, Create>(
                    library.function(c"kv_create", "kv_create")?,
                ),
                delete: std::mem::transmute::<NonNull<c_void>, Delete>(
                    library.function(c"kv_delete", "kv_delete")?,
                ),
                size: std::mem::transmute::<NonNull<c_void>, Size>(
                    library.function(c"kv_get_inst_size", "kv_get_inst_size")?,
                ),
                syntax: std::mem::transmute::<NonNull<c_void>, Syntax>(
                    library.function(c"kv_get_inst_syntax", "kv_get_inst_syntax")?,
                ),
                platforms: platforms(list),
            })
        }
    }

    /// Decodes `code` as [`decode`] does, and adds each instruction's syntax and
    /// the mnemonic in it.
    ///
    /// # Errors
    /// Code or platform that the library, or the own table, does not take. Then
    /// [`decode`] still gives what it can.
    pub fn decode(&self, code: &[u8], platform: Platform) -> Result<Decoded, IgaError> {
        if code.len() > MAX_IGA_BYTES {
            return Err(IgaError::TooLarge(code.len()));
        }
        let number = number(platform);
        if !self.platforms.contains(&number) {
            return Err(IgaError::Platform(platform));
        }
        let mut decoded = decode(code, platform);
        if decoded.bad > 0 {
            return Err(IgaError::Unknown(decoded.bad));
        }
        let Some(last) = decoded.instructions.last() else {
            return Ok(decoded);
        };
        let end = last.offset as usize + usize::from(last.length);
        let view = DecodedKernel::new(self, code.get(..end).unwrap_or(code), number)?;
        for instruction in &mut decoded.instructions {
            let offset = instruction.offset;
            let text = view.syntax(offset, instruction.length);
            let text = text.ok_or(IgaError::Disagrees(offset))?;
            if let Some(mnemonic) = mnemonic(&text) {
                instruction.mnemonic = Cow::Owned(mnemonic.to_owned());
            }
            instruction.text = Some(text.into());
        }
        Ok(decoded)
    }
}

/// `iga_gen_t`.
const fn number(platform: Platform) -> c_int {
    match platform {
        Platform::XeLp => 0x0100_0000,
        Platform::XeHp => 0x0100_0001,
        Platform::XeHpg => 0x0100_0002,
        Platform::XeHpc => 0x0100_0004,
        Platform::Xe2 => 0x0200_0000,
        Platform::Xe3 => 0x0300_0000,
        Platform::Xe3p => 0x0300_0003,
    }
}

/// The word after the predicate: `add` of `(W&f0.0) add (16|M0) ...`.
fn mnemonic(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let after = match text.strip_prefix('(') {
        Some(predicate) => predicate.split_once(')')?.1,
        None => text,
    };
    after.split_whitespace().next()
}

fn platforms(list: Platforms) -> Vec<c_int> {
    let mut known = vec![0; MAX_PLATFORMS];
    let mut needed = 0;
    // SAFETY: `known` holds as many bytes as stated, and the library writes no
    // more; `needed` outlives the call.
    let status = unsafe {
        list(
            size_of_val(known.as_slice()),
            known.as_mut_ptr(),
            &raw mut needed,
        )
    };
    let count = if status == IGA_SUCCESS {
        needed / size_of::<c_int>()
    } else {
        0
    };
    known.truncate(count);
    known
}

/// A library of the dynamic loader, never unloaded: functions of it are kept.
struct IgaLibrary(NonNull<c_void>);

impl IgaLibrary {
    fn open(path: &Path) -> Result<Self, IgaError> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| IgaError::Load("a zero byte in its name".to_owned()))?;
        // SAFETY: `name` ends in a zero byte. Loading runs the library's
        // initialisers: it is the system's or the one that the user named.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle)
            .map(Self)
            .ok_or_else(|| IgaError::Load(loader_message()))
    }

    fn function(&self, symbol: &CStr, name: &'static str) -> Result<NonNull<c_void>, IgaError> {
        // SAFETY: the handle is open, and `symbol` ends in a zero byte.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), symbol.as_ptr()) };
        NonNull::new(address).ok_or(IgaError::Function(name))
    }
}

fn loader_message() -> String {
    // SAFETY: takes nothing; the text lives until this thread's next call of the
    // loader, and is copied before.
    let message = unsafe {
        let message = libc::dlerror();
        if message.is_null() {
            c"unknown error"
        } else {
            CStr::from_ptr(message)
        }
    };
    message.to_string_lossy().into_owned()
}

/// A kernel that the library has decoded.
struct DecodedKernel<'a> {
    iga: &'a Iga,
    view: NonNull<KernelView>,
}

impl<'a> DecodedKernel<'a> {
    /// `code` holds at least one whole instruction.
    fn new(iga: &'a Iga, code: &[u8], platform: c_int) -> Result<Self, IgaError> {
        let mut status = IGA_SUCCESS;
        let mut message: [c_char; MAX_MESSAGE] = [0; MAX_MESSAGE];
        // SAFETY: code and message are as long as stated and outlive the call;
        // the library keeps no pointer to them. 0: the platform's own encoding.
        let view = unsafe {
            let code_at = code.as_ptr().cast();
            (iga.create)(
                platform,
                code_at,
                code.len(),
                &raw mut status,
                message.as_mut_ptr(),
                message.len(),
                0,
            )
        };
        let view = NonNull::new(view).map(|view| Self { iga, view });
        match view {
            // A view with errors is freed, and nothing asked of it.
            Some(view) if status == IGA_SUCCESS => Ok(view),
            _ => Err(IgaError::Decode(text(&message))),
        }
    }

    /// The syntax of the instruction of `length` at `offset`, if there is one.
    fn syntax(&self, offset: u32, length: u8) -> Option<String> {
        let pc = i32::try_from(offset).ok()?;
        // SAFETY: the view is alive; any counter may be asked for.
        let size = unsafe { (self.iga.size)(self.view.as_ptr(), pc) };
        if size != i32::from(length) {
            return None;
        }
        let mut syntax: [c_char; MAX_SYNTAX] = [0; MAX_SYNTAX];
        // SAFETY: the view is alive and has an instruction here; the buffer is as
        // long as stated; without a labeler the library makes its own labels.
        unsafe {
            let (none, nothing) = (std::ptr::null(), std::ptr::null_mut());
            (self.iga.syntax)(
                self.view.as_ptr(),
                pc,
                syntax.as_mut_ptr(),
                syntax.len(),
                FORMAT,
                none,
                nothing,
            );
        }
        Some(text(&syntax))
    }
}

impl Drop for DecodedKernel<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the library, and freed here only.
        unsafe { (self.iga.delete)(self.view.as_ptr()) }
    }
}

/// What stands before the first zero, without spaces around it.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .flat_map(|c| c.to_ne_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
