#include "handover.hpp"

#include "config.hpp"

#include <atomic>
#include <cstdio>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

namespace vze {

namespace {

std::atomic<uint64_t> immediates{0};

int submit_file()
{
	static int file = open(config.submit_path, O_RDWR | O_CLOEXEC);
	return file;
}

} // namespace

/* Not inlined, and with something to do behind the call: each has a frame. */
#define FRAME __attribute__((noinline, noclone))

/* A command that every file knows, so that it succeeds. */
FRAME void kernel_submit()
{
	if (ioctl(submit_file(), FIOCLEX) != 0) {
		perror("virtual Level Zero driver: VZE_SUBMIT");
		_exit(98);
	}
}

FRAME void submit_batch()
{
	if (config.submit_thread)
		std::thread(kernel_submit).join();
	else
		kernel_submit();
	asm volatile("");
}

FRAME void flush_immediate()
{
	if (*config.submit_path == '\0' || (immediates.fetch_add(1) + 1) % config.submit_every != 0)
		return;
	submit_batch();
	asm volatile("");
}

FRAME void flush_queue()
{
	if (*config.submit_path == '\0')
		return;
	submit_batch();
	asm volatile("");
}

FRAME void flush_fenced()
{
	if (*config.submit_path == '\0')
		return;
	submit_batch();
	asm volatile("" ::: "memory");
}

} // namespace vze
