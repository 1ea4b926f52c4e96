//! What the fuzz target `zebin` calls.

use super::*;

/// Reads a module and asks for everything in it. For fuzzing.
pub fn fuzz_module(data: &[u8]) {
    let Ok(module) = Module::parse(data) else {
        return;
    };
    assert!(module.memory() < (MAX_MODULE + super::super::limits::MAX_TEXT) * 4);
    for kernel in module.kernels.iter().chain(&module.functions) {
        let size = u32::try_from(kernel.code.len()).unwrap_or(u32::MAX);
        for offset in (0..size.min(1 << 14)).step_by(8).chain([size, u32::MAX]) {
            assert!(kernel.source(offset).len() <= 1024);
            assert!(!kernel.function(offset).is_empty());
        }
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("zebin", fuzz_module);
