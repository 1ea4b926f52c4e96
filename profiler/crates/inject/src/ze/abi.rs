//! The part of Level Zero's interface that the helper uses: ze_api.h and ze_ddi.h of the
//! specification 1.0 to 1.17.

use crate::ffi;
use std::ffi::{CStr, c_char, c_void};

/// An object of the driver's.
pub(super) type Handle = *mut c_void;
/// Memory that the helper only hands on.
pub(super) type Pointer = *const c_void;
/// `ze_result_t`.
pub(super) type ZeResult = i32;
/// Three numbers: `ze_group_count_t`, `ze_group_size_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Three(pub(super) [u32; 3]);

/// `ZE_RESULT_SUCCESS`.
pub(super) const SUCCESS: ZeResult = 0;
/// `ZE_RESULT_NOT_READY`.
pub(super) const NOT_READY: ZeResult = 1;

/// `ze_structure_type_t`.
pub(super) mod stype {
    pub(in crate::ze) const EVENT_POOL_DESC: u32 = 0x10;
    pub(in crate::ze) const EVENT_DESC: u32 = 0x11;
    /// Its timer's resolution is in cycles a second.
    pub(in crate::ze) const DEVICE_PROPERTIES_1_2: u32 = 0x2_0006;
    pub(in crate::ze) const COUNTER_BASED_POOL: u32 = 0x2_0014;
    pub(in crate::ze) const MUTABLE_LIST: u32 = 0x2_0016;
    pub(in crate::ze) const DDI_HANDLES: u32 = 0x2_0027;
}

/// `ze_event_pool_flags_t`.
pub(super) mod pool_flag {
    pub(in crate::ze) const HOST_VISIBLE: u32 = 1;
    pub(in crate::ze) const IPC: u32 = 2;
    pub(in crate::ze) const KERNEL_TIMESTAMP: u32 = 4;
    pub(in crate::ze) const MAPPED_TIMESTAMP: u32 = 8;
}

/// `ZE_EVENT_SCOPE_FLAG_HOST`.
pub(super) const SCOPE_HOST: u32 = 4;
/// `ZE_DRIVER_DDI_HANDLE_EXT_FLAG_DDI_HANDLE_EXT_SUPPORTED`.
pub(super) const DDI_HANDLES_SUPPORTED: u32 = 1;

/// `ze_event_pool_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PoolDesc {
    pub(super) stype: u32,
    pub(super) next: Pointer,
    pub(super) flags: u32,
    pub(super) count: u32,
}

/// `ze_event_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EventDesc {
    pub(super) stype: u32,
    pub(super) next: Pointer,
    pub(super) index: u32,
    pub(super) signal: u32,
    pub(super) wait: u32,
}

/// `ze_kernel_timestamp_result_t`: the whole device's clock, then the context's own.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Timestamps {
    pub(super) global_start: u64,
    pub(super) global_end: u64,
    pub(super) context_start: u64,
    pub(super) context_end: u64,
}

/// `ze_device_properties_t`, with room for what later versions add.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceProperties(pub(super) [u64; 128]);

impl DeviceProperties {
    /// To be filled in.
    pub(super) fn empty() -> Self {
        let mut words = [0; 128];
        words[0] = stype::DEVICE_PROPERTIES_1_2.into();
        Self(words)
    }

    /// `timerResolution`: cycles a second; nanoseconds of a cycle of drivers that do not
    /// know version 1.2 of the structure.
    pub(super) fn resolution(&self) -> u64 {
        self.0[10]
    }

    /// `timestampValidBits` and `kernelTimestampValidBits`.
    pub(super) fn bits(&self) -> (u32, u32) {
        let word = self.0[11];
        let low = u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        (low, u32::try_from(word >> 32).unwrap_or(0))
    }
}

/// A value at an offset of a structure of the program's.
///
/// # Safety
/// The structure is there and has it.
pub(super) unsafe fn at<T: Copy>(base: Pointer, offset: usize) -> T {
    // SAFETY: the caller's promise; unaligned reads need no alignment.
    unsafe { base.byte_add(offset).cast::<T>().read_unaligned() }
}

/// The structure of a type in a chain of `pNext`, the first one included.
///
/// # Safety
/// `first` is null, or a structure of Level Zero with `stype` and `pNext`.
pub(super) unsafe fn chained(first: Pointer, wanted: u32) -> Option<Pointer> {
    let mut next = first;
    // A chain that goes round is the program's fault, and no reason to hang.
    for _ in 0..64 {
        if next.is_null() || !ffi::is_readable(next, 16) {
            return None;
        }
        // SAFETY: the caller's promise.
        let (found, behind) = unsafe { (at::<u32>(next, 0), at::<Pointer>(next, 8)) };
        if found == wanted {
            return Some(next);
        }
        next = behind;
    }
    None
}

/// The functions of the driver's that the helper calls or stands in front of: name, table,
/// place in it, version of the interface since when the table has it.
macro_rules! functions {
    ($($name:ident $text:literal $table:ident $place:literal $since:literal,)*) => {
        /// A function of the driver's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum ZeFunction { $($name,)* }

        /// All of them.
        pub(super) const FUNCTIONS: &[TablePlace] = &[
            $(TablePlace {
                function: ZeFunction::$name,
                text: $text,
                table: ZeTable::$table,
                index: $place,
                since: $since,
            },)*
        ];
    };
}

/// A table of addresses that the driver fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeTable {
    /// `zeGetDriverProcAddrTable`
    Driver,
    /// `zeGetDeviceProcAddrTable`
    Device,
    /// `zeGetContextProcAddrTable`
    Context,
    /// `zeGetCommandQueueProcAddrTable`
    Queue,
    /// `zeGetCommandListProcAddrTable`
    List,
    /// `zeGetCommandListExpProcAddrTable`
    ListExp,
    /// `zeGetFenceProcAddrTable`
    Fence,
    /// `zeGetEventPoolProcAddrTable`
    Pool,
    /// `zeGetEventProcAddrTable`
    Event,
    /// `zeGetKernelProcAddrTable`
    Kernel,
    /// None: it is asked for by its name.
    None,
}

/// Where a function is found.
pub(super) struct TablePlace {
    pub(super) function: ZeFunction,
    pub(super) text: &'static CStr,
    pub(super) table: ZeTable,
    pub(super) index: usize,
    /// Low half of `ze_api_version_t`: of a caller with an older one, the table ends
    /// before it.
    pub(super) since: u32,
}

functions! {
    DriverGetProperties c"zeDriverGetProperties" Driver 2 0,
    DriverGetExtensionFunctionAddress c"zeDriverGetExtensionFunctionAddress" Driver 5 1,
    DeviceGet c"zeDeviceGet" Device 0 0,
    DeviceGetProperties c"zeDeviceGetProperties" Device 2 0,
    DeviceGetGlobalTimestamps c"zeDeviceGetGlobalTimestamps" Device 14 1,
    ContextDestroy c"zeContextDestroy" Context 1 0,
    QueueCreate c"zeCommandQueueCreate" Queue 0 0,
    QueueDestroy c"zeCommandQueueDestroy" Queue 1 0,
    QueueExecute c"zeCommandQueueExecuteCommandLists" Queue 2 0,
    QueueSynchronize c"zeCommandQueueSynchronize" Queue 3 0,
    ListCreate c"zeCommandListCreate" List 0 0,
    ListCreateImmediate c"zeCommandListCreateImmediate" List 1 0,
    ListDestroy c"zeCommandListDestroy" List 2 0,
    ListReset c"zeCommandListReset" List 4 0,
    AppendMemoryCopy c"zeCommandListAppendMemoryCopy" List 8 0,
    AppendMemoryFill c"zeCommandListAppendMemoryFill" List 9 0,
    AppendMemoryCopyRegion c"zeCommandListAppendMemoryCopyRegion" List 10 0,
    AppendMemoryCopyFromContext c"zeCommandListAppendMemoryCopyFromContext" List 11 0,
    AppendImageCopy c"zeCommandListAppendImageCopy" List 12 0,
    AppendImageCopyRegion c"zeCommandListAppendImageCopyRegion" List 13 0,
    AppendImageCopyToMemory c"zeCommandListAppendImageCopyToMemory" List 14 0,
    AppendImageCopyFromMemory c"zeCommandListAppendImageCopyFromMemory" List 15 0,
    AppendEventReset c"zeCommandListAppendEventReset" List 20 0,
    AppendLaunchKernel c"zeCommandListAppendLaunchKernel" List 22 0,
    AppendLaunchCooperativeKernel c"zeCommandListAppendLaunchCooperativeKernel" List 23 0,
    AppendLaunchKernelIndirect c"zeCommandListAppendLaunchKernelIndirect" List 24 0,
    AppendLaunchMultipleKernelsIndirect
        c"zeCommandListAppendLaunchMultipleKernelsIndirect" List 25 0,
    ListHostSynchronize c"zeCommandListHostSynchronize" List 28 6,
    AppendLaunchKernelWithParameters
        c"zeCommandListAppendLaunchKernelWithParameters" List 36 14,
    AppendLaunchKernelWithArguments
        c"zeCommandListAppendLaunchKernelWithArguments" List 37 14,
    AppendMemoryCopyWithParameters
        c"zeCommandListAppendMemoryCopyWithParameters" List 38 16,
    AppendMemoryFillWithParameters
        c"zeCommandListAppendMemoryFillWithParameters" List 39 16,
    ImmediateAppendListsWithParameters
        c"zeCommandListImmediateAppendCommandListsWithParameters" List 40 16,
    BeginGraphCapture c"zeCommandListBeginGraphCaptureExt" List 45 17,
    BeginCaptureIntoGraph c"zeCommandListBeginCaptureIntoGraphExt" List 46 17,
    ListCreateClone c"zeCommandListCreateCloneExp" ListExp 0 9,
    ImmediateAppendLists c"zeCommandListImmediateAppendCommandListsExp" ListExp 1 9,
    FenceHostSynchronize c"zeFenceHostSynchronize" Fence 2 0,
    FenceQueryStatus c"zeFenceQueryStatus" Fence 3 0,
    PoolCreate c"zeEventPoolCreate" Pool 0 0,
    PoolDestroy c"zeEventPoolDestroy" Pool 1 0,
    EventCreate c"zeEventCreate" Event 0 0,
    EventDestroy c"zeEventDestroy" Event 1 0,
    EventHostSignal c"zeEventHostSignal" Event 2 0,
    EventQueryStatus c"zeEventQueryStatus" Event 4 0,
    EventHostReset c"zeEventHostReset" Event 5 0,
    EventQueryKernelTimestamp c"zeEventQueryKernelTimestamp" Event 6 0,
    KernelCreate c"zeKernelCreate" Kernel 0 0,
    KernelDestroy c"zeKernelDestroy" Kernel 1 0,
    KernelSetGroupSize c"zeKernelSetGroupSize" Kernel 3 0,
    AppendMemoryCopyWithParametersExp
        c"zexCommandListAppendMemoryCopyWithParameters" None 0 0,
    BeginGraphCaptureExp c"zeCommandListBeginGraphCaptureExp" None 0 0,
    BeginCaptureIntoGraphExp c"zeCommandListBeginCaptureIntoGraphExp" None 0 0,
}

/// A text of the program's.
///
/// # Safety
/// It is null, or ends with a NUL and stays as it is meanwhile.
pub(super) unsafe fn text<'a>(text: *const c_char) -> &'a CStr {
    if text.is_null() {
        return c"";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }
}
