// A Level Zero program in Rust, through raw bindings: `ze_rust MODULE LAUNCHES`.
// Two threads launch from call paths of their own; the account is printed as the
// other Level Zero workloads print it.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

type Handle = *mut c_void;
type Status = u32;

#[repr(C)]
struct Desc {
    stype: u32,
    next: *const c_void,
    flags: u32,
    rest: [u32; 5],
}

#[repr(C)]
struct ModuleDesc {
    stype: u32,
    next: *const c_void,
    format: u32,
    size: usize,
    bytes: *const u8,
    build_flags: *const c_char,
    constants: *const c_void,
}

#[repr(C)]
struct KernelDesc {
    stype: u32,
    next: *const c_void,
    flags: u32,
    name: *const c_char,
}

#[repr(C)]
struct Groups {
    x: u32,
    y: u32,
    z: u32,
}

#[link(name = "ze_loader")]
unsafe extern "C" {
    fn zeInit(flags: u32) -> Status;
    fn zeDriverGet(count: *mut u32, drivers: *mut Handle) -> Status;
    fn zeDeviceGet(driver: Handle, count: *mut u32, devices: *mut Handle) -> Status;
    fn zeContextCreate(driver: Handle, desc: *const Desc, context: *mut Handle) -> Status;
    fn zeModuleCreate(
        context: Handle,
        device: Handle,
        desc: *const ModuleDesc,
        module: *mut Handle,
        log: *mut Handle,
    ) -> Status;
    fn zeModuleGetKernelNames(
        module: Handle,
        count: *mut u32,
        names: *mut *const c_char,
    ) -> Status;
    fn zeKernelCreate(module: Handle, desc: *const KernelDesc, kernel: *mut Handle) -> Status;
    fn zeKernelSetGroupSize(kernel: Handle, x: u32, y: u32, z: u32) -> Status;
    fn zeCommandListCreateImmediate(
        context: Handle,
        device: Handle,
        desc: *const Desc,
        list: *mut Handle,
    ) -> Status;
    fn zeCommandListAppendLaunchKernel(
        list: Handle,
        kernel: Handle,
        groups: *const Groups,
        signal: Handle,
        waits: u32,
        wait: *mut Handle,
    ) -> Status;
    fn zeCommandListDestroy(list: Handle) -> Status;
}

fn check(status: Status) {
    assert_eq!(status, 0, "a call failed: {status:#x}");
}

/// A handle that an initializer writes.
fn out(make: impl FnOnce(*mut Handle) -> Status) -> Handle {
    let mut handle = null_mut();
    check(make(&mut handle));
    handle
}

fn desc(stype: u32) -> Desc {
    Desc {
        stype,
        next: null(),
        flags: 0,
        rest: [0; 5],
    }
}

/// Handles may be used from every thread.
#[derive(Clone, Copy)]
struct Program {
    context: Handle,
    device: Handle,
    kernel: Handle,
}

unsafe impl Send for Program {}

struct Launcher {
    program: Program,
    list: Handle,
    left: u32,
}

impl Launcher {
    #[inline(never)]
    fn launch(&mut self, x: u32) -> u32 {
        let groups = Groups { x, y: 1, z: 1 };
        let (list, kernel) = (self.list, self.program.kernel);
        check(unsafe {
            zeCommandListAppendLaunchKernel(list, kernel, &groups, null_mut(), 0, null_mut())
        });
        self.left -= 1;
        self.left
    }
}

/// Both paths, each a generic function of its own instance.
trait Path {
    const X: u32;
}
struct Left;
struct Right;
impl Path for Left {
    const X: u32 = 3;
}
impl Path for Right {
    const X: u32 = 4;
}

#[inline(never)]
fn descend<P: Path>(launcher: &mut Launcher, depth: u32) -> u32 {
    let sum = if depth == 0 {
        launcher.launch(P::X)
    } else {
        descend::<P>(launcher, depth - 1)
    };
    std::hint::black_box(sum) + 1
}

#[inline(never)]
fn run<P: Path>(program: Program, launches: u32) {
    let list = out(|p| unsafe {
        // COMMAND_QUEUE_DESC
        zeCommandListCreateImmediate(program.context, program.device, &desc(0xe), p)
    });
    let mut launcher = Launcher {
        program,
        list,
        left: launches,
    };
    while launcher.left > 0 {
        std::hint::black_box(descend::<P>(&mut launcher, 20));
    }
    check(unsafe { zeCommandListDestroy(list) });
}

fn set_up(module: &[u8]) -> (Program, String) {
    unsafe {
        check(zeInit(0));
        let mut one = 1;
        let driver = out(|p| zeDriverGet(&mut one, p));
        let device = out(|p| zeDeviceGet(driver, &mut one, p));
        // CONTEXT_DESC
        let context = out(|p| zeContextCreate(driver, &desc(0xd), p));
        let module_desc = ModuleDesc {
            // MODULE_DESC, native
            stype: 0x1b,
            next: null(),
            format: 1,
            size: module.len(),
            bytes: module.as_ptr(),
            build_flags: null(),
            constants: null(),
        };
        let module = out(|p| zeModuleCreate(context, device, &module_desc, p, null_mut()));
        let mut name = null();
        check(zeModuleGetKernelNames(module, &mut one, &mut name));
        let kernel_desc = KernelDesc {
            // KERNEL_DESC
            stype: 0x1d,
            next: null(),
            flags: 0,
            name,
        };
        let kernel = out(|p| zeKernelCreate(module, &kernel_desc, p));
        check(zeKernelSetGroupSize(kernel, 8, 2, 1));
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let program = Program {
            context,
            device,
            kernel,
        };
        (program, name)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let module = std::fs::read(arguments.next().expect("MODULE")).expect("module");
    let launches: u32 = arguments.next().expect("LAUNCHES").parse().expect("number");
    let (program, name) = set_up(&module);
    let thread = std::thread::Builder::new().name("launcher".into());
    let other = thread
        .spawn(move || {
            // The whole of it, so that it is Send.
            let program = { program };
            run::<Right>(program, launches);
        })
        .expect("thread");
    run::<Left>(program, launches);
    other.join().expect("thread");
    let counts = BTreeMap::from([(name, u64::from(launches) * 2)]);
    println!(
        "{{\"mode\":\"rust\",\"pid\":{},\"launches\":{counts:?}}}",
        std::process::id()
    );
}
