/*
 * How work is handed to the kernel's driver: as real drivers do, by an ioctl, which a
 * device file stands in for. The functions are what a profiler is to find between the
 * functions of the interface and that ioctl.
 */
#ifndef VZE_HANDOVER_HPP
#define VZE_HANDOVER_HPP

namespace vze {

/* A command of an immediate list. Of VZE_SUBMIT_EVERY calls the last makes the ioctl. */
void flush_immediate();
/* The lists of a queue, without and with a fence. */
void flush_queue();
void flush_fenced();

} // namespace vze

#endif
