//! The part of the xe driver's interface that EU stall sampling needs: structures, numbers,
//! and the calls behind a trait, so that tests can be the kernel.
//!
//! Source: Linux, include/uapi/drm/xe_drm.h (6.15).

use aiprof_system::files::kernel;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, Updater},
};
use std::{
    ffi::c_void,
    io,
    os::fd::{FromRawFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

/// Number of an ioctl as `_IOC` makes it.
const fn ioc(direction: u32, kind: u8, number: u32, size: usize) -> Opcode {
    // Sizes are below 2^14.
    (direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number) as Opcode
}

/// Numbers of drivers' own DRM ioctls begin here.
const COMMAND_BASE: u32 = 0x40;
const DEVICE_QUERY: Opcode = ioc(3, b'd', COMMAND_BASE, size_of::<DeviceQuery>());
const OBSERVATION: Opcode = ioc(1, b'd', COMMAND_BASE + 0x0b, size_of::<ObservationParam>());
pub(super) const ENABLE: Opcode = ioc(0, b'i', 0, 0);

/// Items of [`DEVICE_QUERY`].
pub(super) const QUERY_GT_LIST: u32 = 3;
pub(super) const QUERY_EU_STALL: u32 = 10;
/// A type of observation, and what is done with it.
const TYPE_EU_STALL: u64 = 1;
const OP_STREAM_OPEN: u64 = 0;
/// Properties of an EU stall stream.
pub(super) const PROP_GT_ID: u32 = 1;
pub(super) const PROP_SAMPLE_RATE: u32 = 2;
pub(super) const PROP_WAIT_NUM_REPORTS: u32 = 3;
/// The only kind of extension.
const SET_PROPERTY: u32 = 0;
/// `drm_xe_gt.type` of a GT that has execution units; another is for media.
const GT_MAIN: u16 = 0;

/// `struct drm_xe_device_query`
#[derive(Debug, Default)]
#[repr(C)]
struct DeviceQuery {
    extensions: u64,
    query: u32,
    size: u32,
    data: u64,
    reserved: [u64; 2],
}

/// `struct drm_xe_observation_param`
#[derive(Debug, Default)]
#[repr(C)]
struct ObservationParam {
    extensions: u64,
    kind: u64,
    operation: u64,
    param: u64,
}

/// `struct drm_xe_ext_set_property`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct SetProperty {
    pub(super) next: u64,
    pub(super) name: u32,
    pub(super) pad: u32,
    pub(super) property: u32,
    pub(super) pad2: u32,
    pub(super) value: u64,
    pub(super) reserved: [u64; 2],
}

const _: () = {
    assert!(size_of::<DeviceQuery>() == 40 && DEVICE_QUERY == 0xc028_6440);
    assert!(size_of::<ObservationParam>() == 32 && OBSERVATION == 0x4020_644b);
    assert!(ENABLE == 0x6900);
    assert!(std::mem::offset_of!(DeviceQuery, query) == 8);
    assert!(std::mem::offset_of!(DeviceQuery, size) == 12);
    assert!(std::mem::offset_of!(DeviceQuery, data) == 16);
    assert!(std::mem::offset_of!(ObservationParam, kind) == 8);
    assert!(std::mem::offset_of!(ObservationParam, operation) == 16);
    assert!(std::mem::offset_of!(ObservationParam, param) == 24);
    assert!(size_of::<SetProperty>() == 48);
    assert!(std::mem::offset_of!(SetProperty, name) == 8);
    assert!(std::mem::offset_of!(SetProperty, property) == 16);
    assert!(std::mem::offset_of!(SetProperty, value) == 24);
};

/// Properties of a stream, chained in memory as the kernel follows them.
#[derive(Debug)]
pub(super) struct Chain {
    properties: Box<[SetProperty]>,
}

impl Chain {
    pub(super) fn new(properties: &[(u32, u64)]) -> Self {
        let one = |&(property, value): &(u32, u64)| SetProperty {
            name: SET_PROPERTY,
            property,
            value,
            ..SetProperty::default()
        };
        let mut properties: Box<[_]> = properties.iter().map(one).collect();
        let next: Vec<_> = properties.iter().skip(1).map(address).collect();
        for (property, next) in properties.iter_mut().zip(next) {
            property.next = next;
        }
        Self { properties }
    }

    /// Address of the first; 0: none.
    pub(super) fn head(&self) -> u64 {
        self.properties.first().map_or(0, address)
    }

    #[cfg(test)]
    pub(super) fn properties(&self) -> &[SetProperty] {
        &self.properties
    }
}

pub(super) fn address<T>(value: &T) -> u64 {
    std::ptr::from_ref(value).expose_provenance() as u64
}

/// Opens nodes of cards.
pub(super) trait Driver {
    fn open(&self, node: &Path) -> Result<Box<dyn Card>, Errno>;
}

/// An open node.
pub(super) trait Card: Send + Sync {
    /// Fills `data` with the answer to a query, if it is as long as the answer. Returns
    /// the answer's length; an empty `data` only asks for that.
    fn query(&self, query: u32, data: &mut [u8]) -> Result<u32, Errno>;
    /// Opens an EU stall stream, which does not wait in reads.
    fn open_stream(&self, properties: &Chain) -> Result<Box<dyn Stream>, Errno>;
}

/// An open stream.
pub(super) trait Stream {
    /// Begins to sample.
    fn enable(&self) -> Result<(), Errno>;
    /// Waits for samples.
    fn wait(&self, time: Duration) -> Result<(), Errno>;
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno>;
}

/// The running kernel.
pub(super) struct Linux;

impl Driver for Linux {
    fn open(&self, node: &Path) -> Result<Box<dyn Card>, Errno> {
        let file = kernel::open_device(node);
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Ok(Box::new(Node(file.map_err(errno)?.into())))
    }
}

struct Node(OwnedFd);

impl Card for Node {
    fn query(&self, query: u32, data: &mut [u8]) -> Result<u32, Errno> {
        let mut request = DeviceQuery {
            query,
            // Longer answers than 4 GiB are none.
            size: u32::try_from(data.len()).map_err(|_| Errno::INVAL)?,
            data: data.as_mut_ptr().expose_provenance() as u64,
            ..DeviceQuery::default()
        };
        // SAFETY: the number is that of the structure. The kernel writes `size` bytes
        // at `data` at most, and those are borrowed.
        unsafe {
            let call = Updater::<DEVICE_QUERY, _>::new(&mut request);
            rustix::ioctl::ioctl(&self.0, call)?;
        }
        Ok(request.size)
    }

    fn open_stream(&self, properties: &Chain) -> Result<Box<dyn Stream>, Errno> {
        let call = OpenStream(ObservationParam {
            kind: TYPE_EU_STALL,
            operation: OP_STREAM_OPEN,
            param: properties.head(),
            ..ObservationParam::default()
        });
        // SAFETY: the number is that of the structure, and the chain it points to is
        // borrowed until the call returns.
        let fd = unsafe { rustix::ioctl::ioctl(&self.0, call)? };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK)?;
        Ok(Box::new(StreamFd(fd)))
    }
}

/// The call that opens a stream: its result is a descriptor.
struct OpenStream(ObservationParam);

// SAFETY: the number is that of the structure; the kernel only reads it, and returns a
// descriptor that belongs to the caller.
unsafe impl Ioctl for OpenStream {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OBSERVATION
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        if fd < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: the kernel has just made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

struct StreamFd(OwnedFd);

impl Stream for StreamFd {
    fn enable(&self) -> Result<(), Errno> {
        // SAFETY: the call takes no argument.
        unsafe { rustix::ioctl::ioctl(&self.0, NoArg::<ENABLE>::new()) }
    }

    fn wait(&self, time: Duration) -> Result<(), Errno> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let time = Timespec::try_from(time).map_err(|_| Errno::INVAL)?;
        rustix::event::poll(&mut fds, Some(&time)).map(|_| ())
    }

    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }
}

/// Largest answer that is believed, in bytes.
const MAX_ANSWER: u32 = 1 << 16;

/// The whole answer to a query.
///
/// # Errors
/// The driver's; EINVAL: it does not know the query.
pub(super) fn ask(card: &dyn Card, query: u32) -> Result<Vec<u8>, Errno> {
    let size = card.query(query, &mut [])?;
    if size > MAX_ANSWER {
        return Err(Errno::OVERFLOW);
    }
    let mut answer = vec![0; size as usize];
    card.query(query, &mut answer)?;
    Ok(answer)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// `struct drm_xe_query_eu_stall`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Bytes of a record.
    pub(super) record_size: usize,
    /// Device cycles between samples, as can be chosen.
    pub(super) rates: Vec<u64>,
}

impl Abilities {
    pub(super) fn parse(answer: &[u8]) -> Option<Self> {
        let long = |at| field(answer, at).map(u64::from_le_bytes);
        let count = usize::try_from(long(72)?).ok()?;
        let rates = answer.get(80..)?.as_chunks::<8>().0;
        Some(Self {
            record_size: usize::try_from(long(16)?).ok()?,
            rates: rates
                .iter()
                .take(count)
                .copied()
                .map(u64::from_le_bytes)
                .collect(),
        })
    }
}

/// `struct drm_xe_gt`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gt {
    pub(super) id: u16,
    /// Major and minor version of its graphics IP, where the hardware reports one.
    pub(super) ip_version: Option<(u16, u16)>,
}

/// Bytes of a GT in the list.
const GT_SIZE: usize = 96;

/// The GTs with execution units.
pub(super) fn main_gts(answer: &[u8]) -> Option<Vec<Gt>> {
    let count = u32::from_le_bytes(field(answer, 0)?) as usize;
    let gts = answer.get(8..)?.as_chunks::<GT_SIZE>().0;
    let gts = gts.iter().take(count);
    Some(gts.filter_map(|gt| main_gt(gt)).collect())
}

fn main_gt(gt: &[u8]) -> Option<Gt> {
    let short = |at| field(gt, at).map(u16::from_le_bytes);
    if short(0)? != GT_MAIN {
        return None;
    }
    let major = short(32)?;
    Some(Gt {
        id: short(4)?,
        ip_version: (major > 0).then_some((major, short(34)?)),
    })
}
