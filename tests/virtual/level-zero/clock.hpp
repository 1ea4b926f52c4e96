/* Host time and the device clock that is computed from it. */
#ifndef VZE_CLOCK_HPP
#define VZE_CLOCK_HPP

#include "config.hpp"

#include <algorithm>
#include <atomic>
#include <ctime>

namespace vze {

/* CLOCK_MONOTONIC, ns. */
inline uint64_t now_ns()
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

/* When the devices of this process stopped, for it is ending; until then the end of
 * time. */
inline std::atomic<uint64_t> devices_end{UINT64_MAX};

/* The time as devices see it: nothing happens on them after their end. */
inline uint64_t device_now_ns()
{
	return std::min(now_ns(), devices_end.load());
}

/* How far apart the clocks of two neighbouring devices are, ticks. */
constexpr uint64_t DEVICE_CLOCK_STEP = 1000000007;

/* The device clock at a host time, all 64 bits of it. One formula of host time
 * alone, so that all processes see one device:
 *   ticks = offset + device * step + ns * hz * (1 + ppb / 10^9) / 10^9
 * in whole micro-hertz, rounded down. */
inline uint64_t ticks_at(uint32_t device, uint64_t ns)
{
	uint64_t speed = static_cast<uint64_t>(1000000000 + config.clock_ppb);
	auto microhertz = static_cast<unsigned __int128>(config.clock_hz) * speed / 1000;
	auto ticks = static_cast<unsigned __int128>(ns) * microhertz / 1000000000000000ULL;
	return config.clock_offset + device * DEVICE_CLOCK_STEP + static_cast<uint64_t>(ticks);
}

/* The lowest `bits` bits. */
inline uint64_t low_bits(uint64_t ticks, uint32_t bits)
{
	return bits >= 64 ? ticks : ticks & ((1ULL << bits) - 1);
}

/* What a kernel timestamp shows at a host time. */
inline uint64_t kernel_ticks(uint32_t device, uint64_t ns)
{
	return low_bits(ticks_at(device, ns), config.clock_bits);
}

} // namespace vze

#endif
