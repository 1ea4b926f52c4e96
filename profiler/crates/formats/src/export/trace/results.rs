//! Return values in words.

use aiprof_model::probes::ResultKind;
use std::fmt::{self, Write};
use std::io;

/// Level Zero's result codes, `ze_result_t` of the specification 1.17.
const LEVEL_ZERO: [(u32, &str); 62] = [
    (0, "ZE_RESULT_SUCCESS"),
    (1, "ZE_RESULT_NOT_READY"),
    (0x7000_0001, "ZE_RESULT_ERROR_DEVICE_LOST"),
    (0x7000_0002, "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY"),
    (0x7000_0003, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    (0x7000_0004, "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE"),
    (0x7000_0005, "ZE_RESULT_ERROR_MODULE_LINK_FAILURE"),
    (0x7000_0006, "ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET"),
    (0x7000_0007, "ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE"),
    (0x7001_0000, "ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS"),
    (0x7001_0001, "ZE_RESULT_ERROR_NOT_AVAILABLE"),
    (0x7002_0000, "ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE"),
    (0x7002_0001, "ZE_RESULT_WARNING_DROPPED_DATA"),
    (0x7800_0001, "ZE_RESULT_ERROR_UNINITIALIZED"),
    (0x7800_0002, "ZE_RESULT_ERROR_UNSUPPORTED_VERSION"),
    (0x7800_0003, "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"),
    (0x7800_0004, "ZE_RESULT_ERROR_INVALID_ARGUMENT"),
    (0x7800_0005, "ZE_RESULT_ERROR_INVALID_NULL_HANDLE"),
    (0x7800_0006, "ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE"),
    (0x7800_0007, "ZE_RESULT_ERROR_INVALID_NULL_POINTER"),
    (0x7800_0008, "ZE_RESULT_ERROR_INVALID_SIZE"),
    (0x7800_0009, "ZE_RESULT_ERROR_UNSUPPORTED_SIZE"),
    (0x7800_000a, "ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT"),
    (
        0x7800_000b,
        "ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT",
    ),
    (0x7800_000c, "ZE_RESULT_ERROR_INVALID_ENUMERATION"),
    (0x7800_000d, "ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION"),
    (0x7800_000e, "ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT"),
    (0x7800_000f, "ZE_RESULT_ERROR_INVALID_NATIVE_BINARY"),
    (0x7800_0010, "ZE_RESULT_ERROR_INVALID_GLOBAL_NAME"),
    (0x7800_0011, "ZE_RESULT_ERROR_INVALID_KERNEL_NAME"),
    (0x7800_0012, "ZE_RESULT_ERROR_INVALID_FUNCTION_NAME"),
    (0x7800_0013, "ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION"),
    (
        0x7800_0014,
        "ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION",
    ),
    (0x7800_0015, "ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX"),
    (0x7800_0016, "ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE"),
    (
        0x7800_0017,
        "ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE",
    ),
    (0x7800_0018, "ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED"),
    (0x7800_0019, "ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE"),
    (0x7800_001a, "ZE_RESULT_ERROR_OVERLAPPING_REGIONS"),
    (0x7800_001b, "ZE_RESULT_WARNING_ACTION_REQUIRED"),
    (0x7800_001c, "ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE"),
    (0x7800_001d, "ZE_RESULT_EXT_RTAS_BUILD_RETRY"),
    (0x7800_001e, "ZE_RESULT_EXT_RTAS_BUILD_DEFERRED"),
    (0x7800_001f, "ZE_RESULT_EXT_ERROR_OPERANDS_INCOMPATIBLE"),
    (0x7800_0020, "ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED"),
    (0x7800_0021, "ZE_RESULT_ERROR_ADDRESS_NOT_FOUND"),
    (0x7800_0022, "ZE_RESULT_QUERY_TRUE"),
    (0x7800_0023, "ZE_RESULT_QUERY_FALSE"),
    (0x7800_0024, "ZE_RESULT_ERROR_INVALID_GRAPH"),
    (0x7800_0025, "ZE_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED"),
    (0x7800_0026, "ZE_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED"),
    (0x7800_0027, "ZE_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT"),
    (0x7800_0028, "ZE_RESULT_ERROR_COMMAND_LIST_NOT_CAPTURING"),
    (0x7800_0029, "ZE_RESULT_ERROR_GRAPH_UNJOINED_FORKS"),
    (0x7800_002a, "ZE_RESULT_ERROR_GRAPH_INTERNAL_EVENT"),
    (0x7ff0_0001, "ZE_RESULT_EXP_ERROR_DEVICE_IS_NOT_VERTEX"),
    (0x7ff0_0002, "ZE_RESULT_EXP_ERROR_VERTEX_IS_NOT_DEVICE"),
    (0x7ff0_0003, "ZE_RESULT_EXP_ERROR_REMOTE_DEVICE"),
    (0x7ff0_0004, "ZE_RESULT_EXP_ERROR_OPERANDS_INCOMPATIBLE"),
    (0x7ff0_0005, "ZE_RESULT_EXP_RTAS_BUILD_RETRY"),
    (0x7ff0_0006, "ZE_RESULT_EXP_RTAS_BUILD_DEFERRED"),
    (0x7fff_fffe, "ZE_RESULT_ERROR_UNKNOWN"),
];

/// Writes what a call returned.
pub(super) fn write(out: &mut String, kind: ResultKind, value: u64) -> fmt::Result {
    let low = (value & 0xffff_ffff) as u32;
    match kind {
        ResultKind::None => out.write_str("done"),
        ResultKind::Level0 => match level_zero(low) {
            Some(name) if low <= 1 => out.write_str(name),
            Some(name) => write!(out, "{name} ({low:#x})"),
            None => write!(out, "{low:#x}"),
        },
        ResultKind::ZeroOk if low < 0x1_0000 => write!(out, "{low}"),
        // OpenCL's and others' errors are negative.
        ResultKind::ZeroOk if low > 0xffff_0000 => write!(out, "{}", low.cast_signed()),
        ResultKind::ZeroOk => write!(out, "{low:#x}"),
        ResultKind::Pointer => write!(out, "{value:#x}"),
        ResultKind::Number => write!(out, "{value}"),
        ResultKind::Errno => errno(out, low.cast_signed()),
    }
}

/// The name of a result code of Level Zero.
pub(super) fn level_zero(code: u32) -> Option<&'static str> {
    let found = LEVEL_ZERO.iter().find(|(known, _)| *known == code);
    found.map(|(_, name)| *name)
}

fn errno(out: &mut String, value: i32) -> fmt::Result {
    write!(out, "{value}")?;
    if !(-4095..0).contains(&value) {
        return Ok(());
    }
    let text = io::Error::from_raw_os_error(-value).to_string();
    let text = text.split(" (os error").next().unwrap_or("");
    write!(out, " ({text})")
}
