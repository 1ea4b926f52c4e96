/*
 * Phases that stdin controls: `ze_phases run module=FILE`. Each line is `PHASE MS LAUNCHES`.
 * PHASE is phase_a, phase_b, phase_c or phase_d, which runs for MS milliseconds of its own
 * CPU time. In this time it first makes LAUNCHES launches of the kernel of the same number
 * of the module, each with a timestamp that is read. `hold` enters a call that waits for an
 * event: another thread prints `holding` when the call waits, and signals the event after
 * another line. When a phase has ended it prints its name. `quit`, or the end of stdin, ends it.
 */
#include "ze.h"

#include <fstream>
#include <iostream>
#include <thread>

static Account account;

static double cpu_ms()
{
	timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

struct Work {
	Program &p;
	ze_command_list_handle_t list;
	ze_event_handle_t event;
	volatile uint64_t sum = 0;

	void run(size_t kernel, long ms, long launches)
	{
		double end = cpu_ms() + static_cast<double>(ms);
		for (long i = 0; i < launches; i++) {
			ze_group_count_t one = {1, 1, 1};
			ze_kernel_timestamp_result_t t = {};
			MUST(CommandList, AppendLaunchKernel, list, p.kernels[kernel], &one, event,
			     0, nullptr);
			MUST(Event, HostSynchronize, event, UINT64_MAX);
			MUST(Event, QueryKernelTimestamp, event, &t);
			MUST(Event, HostReset, event);
		}
		while (cpu_ms() < end)
			for (int i = 0; i < 10000; i++)
				sum = sum + static_cast<uint64_t>(i);
	}
};

#define PHASE(name, kernel)                                                        \
	extern "C" NOINLINE void phase_##name(Work &work, long ms, long launches)  \
	{                                                                          \
		work.run(kernel, ms, launches);                                    \
		asm volatile("");                                                  \
	}
PHASE(a, 0)
PHASE(b, 1)
PHASE(c, 2)
PHASE(d, 3)

static void print(const std::string &line)
{
	printf("%s\n", line.c_str());
	fflush(stdout);
}

/* Until the first thread sleeps: in the call that it was about to make. */
static void wait_for_the_call()
{
	std::string path = "/proc/self/task/" + std::to_string(getpid()) + "/syscall";
	for (int i = 0; i < 60000; i++) {
		long number = 0;
		if (std::ifstream(path) >> number && number == SYS_futex)
			return;
		usleep(1000);
	}
	die("the call that is held does not wait", 0);
}

int main(int argc, char **argv)
{
	Options options(argc, argv);
	Program p(options);
	/* As programs do that read timestamps: they are in ticks of its timer. */
	ze_device_properties_t device = {};
	device.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
	MUST(Device, GetProperties, p.device, &device);
	auto list = p.immediate();
	auto pool = p.pool(2);
	Work work{p, list, p.event(pool, 0)};
	auto held = p.event(pool, 1);
	std::string phase;
	print("ready");
	while (std::cin >> phase) {
		if (phase == "quit")
			break;
		if (phase == "hold") {
			std::thread other([&] {
				wait_for_the_call();
				print("holding");
				std::string line;
				std::cin >> line;
				MUST(Event, HostSignal, held);
			});
			MUST(Event, HostSynchronize, held, UINT64_MAX);
			other.join();
			MUST(Event, HostReset, held);
		} else {
			long ms = 0, launches = 0;
			std::cin >> ms >> launches;
			switch (phase[0]) {
			case 'a': phase_a(work, ms, launches); break;
			case 'b': phase_b(work, ms, launches); break;
			case 'c': phase_c(work, ms, launches); break;
			default: phase_d(work, ms, launches); break;
			}
		}
		print(phase);
	}
	return 0;
}
