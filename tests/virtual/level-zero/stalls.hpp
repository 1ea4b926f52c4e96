/*
 * EU stall records, byte for byte as Linux's xe driver hands them out.
 *
 * Each execution of a kernel with a schedule yields exactly the scheduled counts,
 * spread evenly over its duration. A thread cuts time into read windows and
 * appends the records of each window with one write.
 */
#ifndef VZE_STALLS_HPP
#define VZE_STALLS_HPP

#include "blob.hpp"

#include <cstdint>
#include <memory>

namespace vze {

struct KernelImmutableData;

/* A kernel runs on a device from start to end. */
void stalls_add(uint32_t device, std::shared_ptr<const KernelImmutableData> kernel,
		uint64_t start_ns, uint64_t end_ns);
/* Writes what is due until now and ends the thread. */
void stalls_stop();
/* In the child of a fork: nothing runs. */
void stalls_after_fork();

} // namespace vze

#endif
