//! What is probed and what it means: the model; pure.
//!
//! A *table* ([`table`]) describes the functions of a runtime or the ioctls of a
//! driver. [`Probe`] and [`ProbedFile`] describe what was attached; they
//! travel with the events, so that a capture can be read without the tables it
//! was made with.

/// Declares an enumeration whose values have names in tables.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $enum:ident {
        $($(#[$doc:meta])* $value:ident = $name:literal,)*
    }) => {
        $(#[$meta])*
        pub enum $enum {
            $($(#[$doc])* $value,)*
        }

        impl $enum {
            /// All values, by the names that tables use.
            pub const NAMED: &[(&str, Self)] = &[$(($name, Self::$value)),*];

            /// Its name in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),*
                }
            }
        }
    };
}

#[cfg(test)]
mod abi;
pub mod driver_table;
pub mod expr;
pub mod glob;
pub mod ioctl;
mod parse;
pub mod program;
pub(crate) mod reader;
mod results;
pub mod table;
mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod words;

pub use parse::{TableFile, parse_file};
pub use reader::{MAX_BYTES, TableError};
pub use tables::{Active, ProbeTable, TableSet, Tables};

use serde::{Deserialize, Serialize};

/// One probed function or ioctl; [`Call::probe`](crate::wire::Call::probe) is its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Its id, dense from 0.
    pub id: u32,
    /// Name of the table: `level-zero`, `aiu`, `xe`.
    pub table: String,
    /// The API for people: `Level Zero`, `CUDA driver`, `xe`.
    pub api: String,
    /// The function, demangled, or the ioctl's name.
    pub function: String,
    /// What a call of it does.
    pub kind: CallKind,
    /// More about its kind, if its table gives it.
    pub role: Option<ProbeRole>,
    /// Whether it is an ioctl of a driver.
    pub is_ioctl: bool,
    /// Names and formats of the values, by slot; one without a name is a step on
    /// the way to others, of no interest.
    pub values: Vec<ValueInfo>,
    /// Names of the data, by tag.
    pub data: Vec<DataInfo>,
    /// What the return value means.
    pub result: ResultKind,
    /// Whether exits are seen; if not, a call ends with its thread's next event.
    pub has_exit: bool,
    /// For an ioctl: what its values and data are made of.
    pub layout: Option<Box<ioctl::IoctlLayout>>,
}

/// A file with attached probes; [`Call::library`](crate::wire::Call::library) is its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedFile {
    /// Its id, dense from 1.
    pub id: u32,
    /// Its path as first seen.
    pub path: String,
    /// Name of its table.
    pub table: String,
    /// Its place in a chain of nested calls: outer ones have smaller numbers.
    pub layer: u8,
}

named! {
    /// What a call does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum CallKind {
        /// Puts a kernel on a list, queue or stream.
        Launch = "launch",
        /// Hands prepared work to the device.
        Submit = "submit",
        /// Copies memory to, from or on the device.
        Copy = "copy",
        /// Fills device memory.
        Fill = "fill",
        /// Allocates device or shared memory.
        Alloc = "alloc",
        /// Releases it.
        Free = "free",
        /// Creates or destroys a module: device code.
        Module = "module",
        /// Creates, changes or destroys a kernel.
        Kernel = "kernel",
        /// Creates, signals or reads an event or a fence.
        Event = "event",
        /// Waits for the device.
        Synchronize = "synchronize",
        /// Orders work on the device.
        Barrier = "barrier",
        /// Exchanges data among processes or devices.
        Collective = "collective",
        /// Compiles for the device.
        Compile = "compile",
        /// Creates, changes or destroys a list, queue or stream.
        Queue = "queue",
        /// Creates or destroys a context, a device handle, an address space.
        Context = "context",
        /// Puts memory into a device's address space.
        Bind = "bind",
        /// Takes it out.
        Unbind = "unbind",
        /// Hands out addresses of functions: they are probed then.
        Resolve = "resolve",
        /// Hands out the device's own activity records.
        Activity = "activity",
        /// Switches collection on or off (ITT pause and resume, setenv).
        Control = "control",
        /// Anything else worth a span on the host.
        Host = "host",
        /// Begins or ends a range that the program names, or marks a moment (ROCTX): `role`
        /// shows which.
        Range = "range",
    }
}

impl CallKind {
    /// Whether it is left out while recording is paused: work, waiting, and other functions
    /// of interest. What creates is not, for it may be used later.
    pub fn is_work(self) -> bool {
        use CallKind::{Barrier, Collective, Copy, Event, Fill, Host, Launch, Submit, Synchronize};
        matches!(
            self,
            Launch | Submit | Copy | Fill | Barrier | Collective | Synchronize | Event | Host
        )
    }
}

named! {
    /// What a function does where that does not follow from its kind and its values: a table
    /// gives it with `role`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum ProbeRole {
        /// Takes one more reference to an object.
        Retain = "retain",
        /// Gives a reference back, the last of which destroys the object.
        Release = "release",
        /// Makes a list whose work begins as soon as it is appended.
        Immediate = "immediate",
        /// Ends what a list records: it can be executed.
        Close = "close",
        /// Empties a list.
        Reset = "reset",
        /// From here on work is recorded in a graph.
        BeginCapture = "begin-capture",
        /// The graph is whole.
        EndCapture = "end-capture",
        /// Asks whether something is over, without waiting.
        Query = "query",
        /// Moves memory ahead of its use.
        Prefetch = "prefetch",
        /// Allocates memory of the host.
        Host = "host",
        /// Allocates memory that host and device share.
        Shared = "shared",
        /// Copies within the host's memory.
        HostToHost = "host-to-host",
        /// Copies from the host's memory to a device's.
        HostToDevice = "host-to-device",
        /// Copies from a device's memory to the host's.
        DeviceToHost = "device-to-host",
        /// Copies from device memory to device memory.
        DeviceToDevice = "device-to-device",
        /// Switches collection off.
        Pause = "pause",
        /// Switches it on.
        Resume = "resume",
        /// Sets a variable of the environment.
        Set = "set",
        /// Sets one from a text `NAME=VALUE`.
        Assign = "assign",
        /// Takes one out.
        Unset = "unset",
        /// Takes all out.
        Clear = "clear",
        /// Waits for all that its process has launched.
        WaitAll = "wait-all",
        /// Begins a range on its thread, inside of those that are open there.
        Push = "push",
        /// Ends the innermost one.
        Pop = "pop",
        /// Begins a range that may end on any thread: its result, or the value `range`, is the
        /// range's number.
        Start = "start",
        /// Ends the range of that number.
        Stop = "stop",
        /// Marks a moment.
        Mark = "mark",
        /// Adds to a graph what another one holds.
        Add = "add",
    }
}

/// A value of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueInfo {
    /// Its name. Some names have a meaning for the launch events, see [`role`].
    pub name: String,
    /// How people want to read it.
    pub format: ValueFormat,
    /// Whether it is read at the exit.
    pub at_exit: bool,
}

/// How a value is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueFormat {
    /// Unsigned decimal.
    Decimal,
    /// Two's complement decimal of as many bytes.
    Signed(u8),
    /// Hexadecimal: handles, addresses, flags.
    Hex,
    /// IEEE 754, 4 or 8 bytes.
    Float(u8),
}

/// Data of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInfo {
    /// Its name, see [`role`].
    pub name: String,
    /// Its format.
    pub format: DataFormat,
}

/// What data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataFormat {
    /// Text.
    Text,
    /// An array of handles or addresses, 8 bytes each.
    Handles,
    /// Raw bytes.
    Blob,
}

named! {
    /// What a return value means.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum ResultKind {
        /// Nothing is returned.
        #[default]
        None = "none",
        /// 0 is success, anything else an error of 32 bits.
        ZeroOk = "zero-ok",
        /// Like `ZeroOk`, and 1 means "not ready yet" (Level Zero).
        Level0 = "level0",
        /// A pointer or handle; 0 is failure.
        Pointer = "pointer",
        /// A number without judgement, 64 bits.
        Number = "number",
        /// Negative is an error (`-errno` of system calls).
        Errno = "errno",
    }
}

impl ResultKind {
    /// Whether a call that returned this value succeeded; `None` if the value does not show
    /// it.
    pub fn success(self, value: u64) -> Option<bool> {
        /// `value` as the `int` or enumeration that the function returned.
        const fn low(value: u64) -> u32 {
            (value & 0xffff_ffff) as u32
        }
        match self {
            Self::None | Self::Number => None,
            Self::ZeroOk => Some(low(value) == 0),
            Self::Level0 => Some(!is_level_zero_error(low(value))),
            Self::Pointer => Some(value != 0),
            Self::Errno => Some(low(value).cast_signed() >= 0),
        }
    }

    /// Whether a return value means that what was asked about, or waited for, is not over:
    /// `ZE_RESULT_NOT_READY` (ze_api.h) is no failure, and other APIs have errors for it.
    pub fn is_not_ready(self, value: u64) -> bool {
        self == Self::Level0 && value & 0xffff_ffff == 1
    }
}

/// Whether a `ze_result_t` means that a call failed. Not ready yet, warnings, answers to
/// questions and work put off do not (ze_api.h of the specification 1.17).
fn is_level_zero_error(code: u32) -> bool {
    const NONE: [u32; 8] = [
        0,
        1,
        0x7002_0001, // dropped data
        0x7800_001b, // action required
        0x7800_001e, // build deferred
        0x7800_0022, // true
        0x7800_0023, // false
        0x7ff0_0006, // build deferred
    ];
    !NONE.contains(&code)
}

/// Names of values and data that the launch events are made of. A table that
/// uses them gets launches with kernels, sizes and bytes; other names are
/// arguments like any other.
pub mod role {
    /// Handle of the command list.
    pub const LIST: &str = "list";
    /// Handle of the queue, stream or command queue.
    pub const QUEUE: &str = "queue";
    /// Handle of the device.
    pub const DEVICE: &str = "device";
    /// Handle of the module.
    pub const MODULE: &str = "module";
    /// Handle of the kernel.
    pub const KERNEL: &str = "kernel";
    /// Device address of a kernel's first instruction.
    pub const BASE: &str = "base";
    /// Handle of the event that the call signals.
    pub const EVENT: &str = "event";
    /// Handles of events that are waited for (data).
    pub const EVENTS: &str = "events";
    /// When the launch began that signals an event, in ticks of its device.
    pub const GLOBAL_START: &str = "global_start";
    /// When it ended.
    pub const GLOBAL_END: &str = "global_end";
    /// Handle of the fence.
    pub const FENCE: &str = "fence";
    /// Handles of command lists (data).
    pub const LISTS: &str = "lists";
    /// Number of work groups (or blocks) along each axis.
    pub const GROUPS: [&str; 3] = ["groups_x", "groups_y", "groups_z"];
    /// Work items (or threads) of a group along each axis.
    pub const LOCAL: [&str; 3] = ["local_x", "local_y", "local_z"];
    /// Work items in all along each axis (OpenCL).
    pub const GLOBAL: [&str; 3] = ["global_x", "global_y", "global_z"];
    /// Bytes copied, filled, allocated.
    pub const BYTES: &str = "bytes";
    /// Destination address.
    pub const DST: &str = "dst";
    /// Source address.
    pub const SRC: &str = "src";
    /// Address allocated or released.
    pub const ADDRESS: &str = "address";
    /// Number of a range that may end on any thread.
    pub const RANGE: &str = "range";
    /// Name of the kernel, function, variable or range (data).
    pub const NAME: &str = "name";
    /// Device code (data).
    pub const IMAGE: &str = "image";
    /// Format of the device code.
    pub const FORMAT: &str = "format";
    /// Mode flags of a queue or list: see the table.
    pub const MODE: &str = "mode";
    /// Correlation id of the runtime.
    pub const CORRELATION: &str = "correlation";
    /// Address of a function handed out.
    pub const FUNCTION: &str = "function";
    /// An activity record (data).
    pub const RECORD: &str = "record";
    /// Where it is.
    pub const RECORD_AT: &str = "record_at";
    /// A buffer of activity records (data).
    pub const RECORDS: &str = "records";
    /// Where it is; [`BYTES`] of it are valid.
    pub const BUFFER: &str = "buffer";
    /// What a program asks of a kernel; if it is OpenCL's number for the name, the answer
    /// is the name.
    pub const NAME_INFO: &str = "name_info";
    /// Address of a table of functions that an object begins with.
    pub const DISPATCH: &str = "dispatch";
    /// Text of what a build's `std::string` is assumed to be (data).
    pub const ASSUMED_NAME: &str = "assumed_name";
    /// Where it is.
    pub const ASSUMED_NAME_AT: &str = "assumed_name_at";
    /// Its length by its own account.
    pub const ASSUMED_NAME_LENGTH: &str = "assumed_name_length";
    /// Address of the object that it is in.
    pub const PARAMETERS: &str = "parameters";
    /// Batch buffer or command address of a submission.
    pub const BATCH: &str = "batch";
    /// Handle of a recorded graph of work, or of what was made of it to be executed.
    pub const GRAPH: &str = "graph";
    /// Handle of the graph that another is made of.
    pub const SOURCE_GRAPH: &str = "source_graph";
    /// Handle of the list that another is a copy of.
    pub const SOURCE_LIST: &str = "source_list";
    /// Handles of the images of a copy.
    pub const IMAGES: [&str; 2] = ["src_image", "dst_image"];
    /// Extent of a copied region, in bytes and lines.
    pub const EXTENT: [&str; 3] = ["width", "height", "depth"];
    /// Device code that is used where there is no [`IMAGE`] (data).
    pub const PROGRAM_IMAGE: &str = "program_image";
    /// Where a copy goes, in CUDA's and HIP's numbers: 0 host to host, 1 host to
    /// device, 2 device to host, 3 device to device.
    pub const DIRECTION: &str = "direction";
    /// Work items in all along each axis, as an array (data; OpenCL).
    pub const GLOBAL_ITEMS: &str = "global";
    /// Work items of a group along each axis, as an array (data; OpenCL).
    pub const LOCAL_ITEMS: &str = "local";
}

impl Probe {
    /// The slot of the value with this name.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|v| v.name == name)
    }

    /// The tag of the data with this name.
    pub fn tag(&self, name: &str) -> Option<u8> {
        let at = self.data.iter().position(|d| d.name == name)?;
        u8::try_from(at).ok()
    }
}
