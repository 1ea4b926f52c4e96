/*
 * The static probes (USDT) that iaprof's patched driver has, with its semaphores:
 *   level_zero:launch_kernel(instruction base, address, size, name)
 *   level_zero:compile_kernel(path of the module's file)
 * They fire when VZE_USDT is 1 and someone listens.
 */
#ifndef VZE_USDT_HPP
#define VZE_USDT_HPP

#include <cstdint>
#include <vector>

namespace vze {

struct KernelImmutableData;

/* A kernel is being launched. */
void usdt_launch(const KernelImmutableData &kernel);
/* A module was made: it is written to a file of VZE_DUMP first. */
void usdt_compile(const std::vector<uint8_t> &module);

} // namespace vze

#endif
