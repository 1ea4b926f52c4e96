/*
 * EU stall samples: who was seen where, in which read window.
 *
 * Each execution of a kernel with a schedule yields exactly the scheduled counts,
 * spread evenly over its duration. A thread cuts time into read windows; each GT
 * gets the records of each window with one write.
 */
#ifndef VZE_STALLS_HPP
#define VZE_STALLS_HPP

#include "blob.hpp"

#include <cstdint>
#include <memory>

namespace vze {

/* A kernel that runs. */
struct Execution {
	uint32_t device;
	/* Its GT; -1: the work is spread over all GTs of the device. */
	int32_t sub;
	/* Number of the call that appended it. */
	uint64_t seq;
	/* Of the kernel's first instruction. */
	uint64_t address;
	uint64_t start_ns, end_ns;
};

void stalls_add(const Execution &execution, std::shared_ptr<const KernelInfo> kernel);
/* Writes what is due until now and ends the thread. */
void stalls_stop();
/* In the child of a fork: nothing runs. */
void stalls_after_fork();

} // namespace vze

#endif
