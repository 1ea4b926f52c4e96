//! Names of return values.

use super::ResultKind;

/// `ze_result_t` of the Level Zero specification 1.17, without `ZE_RESULT_`.
const LEVEL_ZERO: &[(u32, &str)] = &[
    (0, "SUCCESS"),
    (1, "NOT_READY"),
    (0x7000_0001, "ERROR_DEVICE_LOST"),
    (0x7000_0002, "ERROR_OUT_OF_HOST_MEMORY"),
    (0x7000_0003, "ERROR_OUT_OF_DEVICE_MEMORY"),
    (0x7000_0004, "ERROR_MODULE_BUILD_FAILURE"),
    (0x7000_0005, "ERROR_MODULE_LINK_FAILURE"),
    (0x7000_0006, "ERROR_DEVICE_REQUIRES_RESET"),
    (0x7000_0007, "ERROR_DEVICE_IN_LOW_POWER_STATE"),
    (0x7ff0_0001, "EXP_ERROR_DEVICE_IS_NOT_VERTEX"),
    (0x7ff0_0002, "EXP_ERROR_VERTEX_IS_NOT_DEVICE"),
    (0x7ff0_0003, "EXP_ERROR_REMOTE_DEVICE"),
    (0x7ff0_0004, "EXP_ERROR_OPERANDS_INCOMPATIBLE"),
    (0x7ff0_0005, "EXP_RTAS_BUILD_RETRY"),
    (0x7ff0_0006, "EXP_RTAS_BUILD_DEFERRED"),
    (0x7001_0000, "ERROR_INSUFFICIENT_PERMISSIONS"),
    (0x7001_0001, "ERROR_NOT_AVAILABLE"),
    (0x7002_0000, "ERROR_DEPENDENCY_UNAVAILABLE"),
    (0x7002_0001, "WARNING_DROPPED_DATA"),
    (0x7800_0001, "ERROR_UNINITIALIZED"),
    (0x7800_0002, "ERROR_UNSUPPORTED_VERSION"),
    (0x7800_0003, "ERROR_UNSUPPORTED_FEATURE"),
    (0x7800_0004, "ERROR_INVALID_ARGUMENT"),
    (0x7800_0005, "ERROR_INVALID_NULL_HANDLE"),
    (0x7800_0006, "ERROR_HANDLE_OBJECT_IN_USE"),
    (0x7800_0007, "ERROR_INVALID_NULL_POINTER"),
    (0x7800_0008, "ERROR_INVALID_SIZE"),
    (0x7800_0009, "ERROR_UNSUPPORTED_SIZE"),
    (0x7800_000a, "ERROR_UNSUPPORTED_ALIGNMENT"),
    (0x7800_000b, "ERROR_INVALID_SYNCHRONIZATION_OBJECT"),
    (0x7800_000c, "ERROR_INVALID_ENUMERATION"),
    (0x7800_000d, "ERROR_UNSUPPORTED_ENUMERATION"),
    (0x7800_000e, "ERROR_UNSUPPORTED_IMAGE_FORMAT"),
    (0x7800_000f, "ERROR_INVALID_NATIVE_BINARY"),
    (0x7800_0010, "ERROR_INVALID_GLOBAL_NAME"),
    (0x7800_0011, "ERROR_INVALID_KERNEL_NAME"),
    (0x7800_0012, "ERROR_INVALID_FUNCTION_NAME"),
    (0x7800_0013, "ERROR_INVALID_GROUP_SIZE_DIMENSION"),
    (0x7800_0014, "ERROR_INVALID_GLOBAL_WIDTH_DIMENSION"),
    (0x7800_0015, "ERROR_INVALID_KERNEL_ARGUMENT_INDEX"),
    (0x7800_0016, "ERROR_INVALID_KERNEL_ARGUMENT_SIZE"),
    (0x7800_0017, "ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE"),
    (0x7800_0018, "ERROR_INVALID_MODULE_UNLINKED"),
    (0x7800_0019, "ERROR_INVALID_COMMAND_LIST_TYPE"),
    (0x7800_001a, "ERROR_OVERLAPPING_REGIONS"),
    (0x7800_001b, "WARNING_ACTION_REQUIRED"),
    (0x7800_001c, "ERROR_INVALID_KERNEL_HANDLE"),
    (0x7800_001d, "EXT_RTAS_BUILD_RETRY"),
    (0x7800_001e, "EXT_RTAS_BUILD_DEFERRED"),
    (0x7800_001f, "EXT_ERROR_OPERANDS_INCOMPATIBLE"),
    (0x7800_0020, "ERROR_SURVIVABILITY_MODE_DETECTED"),
    (0x7800_0021, "ERROR_ADDRESS_NOT_FOUND"),
    (0x7800_0022, "QUERY_TRUE"),
    (0x7800_0023, "QUERY_FALSE"),
    (0x7800_0024, "ERROR_INVALID_GRAPH"),
    (0x7800_0025, "ERROR_GRAPH_CAPTURE_UNSUPPORTED"),
    (0x7800_0026, "ERROR_GRAPH_CAPTURE_INVALIDATED"),
    (0x7800_0027, "ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT"),
    (0x7800_0028, "ERROR_COMMAND_LIST_NOT_CAPTURING"),
    (0x7800_0029, "ERROR_GRAPH_UNJOINED_FORKS"),
    (0x7800_002a, "ERROR_GRAPH_INTERNAL_EVENT"),
    (0x7fff_fffe, "ERROR_UNKNOWN"),
];

impl ResultKind {
    /// The name of a return value, where its kind has names.
    pub fn value_name(self, value: u64) -> Option<&'static str> {
        if self != Self::Level0 {
            return None;
        }
        let code = u32::try_from(value & 0xffff_ffff).ok()?;
        let found = LEVEL_ZERO.iter().find(|(number, _)| *number == code);
        found.map(|(_, name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/usr/include/level_zero/ze_api.h";

    #[test]
    fn only_level_zero_has_names() {
        let lost = 0x7000_0001;
        assert_eq!(
            ResultKind::Level0.value_name(lost),
            Some("ERROR_DEVICE_LOST")
        );
        // What a function leaves in the upper half of the register means nothing.
        let dirty = 0xdead_0000_0000 | lost;
        assert_eq!(
            ResultKind::Level0.value_name(dirty),
            Some("ERROR_DEVICE_LOST")
        );
        assert_eq!(ResultKind::Level0.value_name(5), None);
        assert_eq!(ResultKind::ZeroOk.value_name(lost), None);
    }

    #[test]
    fn the_installed_header_agrees() {
        let Ok(header) = std::fs::read_to_string(HEADER) else {
            println!("skipped: the_installed_header_agrees: needs {HEADER}");
            return;
        };
        let mut compared = 0;
        for line in header.lines() {
            let mut words = line.trim().split([' ', ',']);
            let name = words.next().and_then(|w| w.strip_prefix("ZE_RESULT_"));
            let (Some(name), Some("="), Some(number)) = (name, words.next(), words.next()) else {
                continue;
            };
            let number = match number.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => number.parse().unwrap(),
            };
            if name != "FORCE_UINT32" {
                assert_eq!(ResultKind::Level0.value_name(number), Some(name));
                compared += 1;
            }
        }
        assert!(compared > 40, "{compared}");
    }
}
