/*
 * A Level Zero program: `ze_work MODE module=FILE [key=value...]`. It prints what
 * it did as one line of JSON; every call must succeed.
 *
 *   basic   every kind of list, copies, fills, events, fences.  rounds=N
 *   newer   the functions that came after the headers.          rounds=N
 *   paths   one kernel from many call paths of depth 30.        rounds=N
 *   threads threads with a list each.                           threads=N launches=N
 *   fork    children that set up everything themselves.         children=N launches=N
 *   rate    launches at a steady rate.                          rate=N seconds=S
 *   loop    launches as fast as can be.                         seconds=S threads=N
 *           Without `seconds`: prints `looping`, ends after a line on stdin.
 *   late    prints `ready`, launches after a line on stdin,     launches=N pause_us=N
 *           prints `launched`, ends after a line on stdin.
 *   paused  5 launches, 7 with PTI_ENABLE_COLLECTION=1, 11 with 0, 13 after
 *           __itt_resume, 17 after __itt_pause.
 *   reuse   launches by handles that are freed and used again.  rounds=N
 *
 * go=1: prints `loaded PID` once the driver is there, and goes on after a line on stdin.
 * real=1: the driver runs nothing, so memory and timestamps are not looked at, and
 * is older than in-order lists.
 */
#include "ze.h"

#include "ze_walk.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include <sys/wait.h>

static Account account;

/* Counted by the program itself, whatever the driver thinks. */
static void launch(ze_command_list_handle_t list, Program &p, size_t kernel,
		   uint32_t groups, ze_event_handle_t signal = nullptr)
{
	ze_group_count_t count = {groups, 2, 1};
	account.add(p.names[kernel], 1);
	MUST(CommandList, AppendLaunchKernel, list, p.kernels[kernel], &count, signal, 0, nullptr);
}

static void run_list(ze_command_queue_handle_t queue, ze_command_list_handle_t list,
		     ze_fence_handle_t fence = nullptr)
{
	MUST(CommandQueue, ExecuteCommandLists, queue, 1, &list, fence);
	account.called("zeCommandQueueExecuteCommandLists");
}

/* Fill, copy there and back, look. */
static void move_memory(Program &p, ze_command_list_handle_t list, uint8_t *from, uint8_t *to,
			size_t size)
{
	uint32_t pattern = 0x01020304;
	MUST(CommandList, AppendMemoryFill, list, from, &pattern, 4, size, nullptr, 0, nullptr);
	MUST(CommandList, AppendBarrier, list, nullptr, 0, nullptr);
	MUST(CommandList, AppendMemoryCopy, list, p.buffer, from, size, nullptr, 0, nullptr);
	MUST(CommandList, AppendBarrier, list, nullptr, 0, nullptr);
	MUST(CommandList, AppendMemoryCopy, list, to, p.buffer, size, nullptr, 0, nullptr);
	account.called("zeCommandListAppendMemoryFill");
	account.called("zeCommandListAppendMemoryCopy", 2);
	account.called("zeCommandListAppendBarrier", 2);
}

/* Kernel times in device ticks, by the program's own events. */
static void note_times(const std::vector<ze_event_handle_t> &events)
{
	std::string out = "[";
	for (auto event : events) {
		ze_kernel_timestamp_result_t t = {};
		MUST(Event, HostSynchronize, event, UINT64_MAX);
		MUST(Event, QueryKernelTimestamp, event, &t);
		out += (out == "[" ? "[" : ",[") + std::to_string(t.global.kernelStart) + "," +
		       std::to_string(t.global.kernelEnd) + "]";
	}
	account.also("ticks", out + "]");
}

/* Waits in a function, and gives the nanoseconds that the program waited. */
template <class Wait> static uint64_t timed(Wait wait)
{
	uint64_t begun = now_ns();
	wait();
	return now_ns() - begun;
}

static int basic(const Options &options)
{
	bool real = options.number("real", 0) != 0;
	Program p(options);
	const size_t size = 4096;
	auto *from = static_cast<uint8_t *>(p.allocate(size));
	auto *to = static_cast<uint8_t *>(p.allocate(size));
	auto queue = p.queue();
	auto in_order = p.list(real ? 0 : 8), any_order = p.list();
	auto immediate = p.immediate(), synchronous = p.immediate(0, true);
	auto pool = p.pool(4);
	ze_fence_desc_t fence_desc = {ZE_STRUCTURE_TYPE_FENCE_DESC, nullptr, 0};
	ze_fence_handle_t fence;
	MUST(Fence, Create, queue, &fence_desc, &fence);
	std::vector<ze_event_handle_t> events;
	for (uint32_t i = 0; i < 4; i++)
		events.push_back(p.event(pool, i));

	long rounds = options.number("rounds", 1);
	uint64_t fence_ns = 0, queue_ns = 0;
	for (size_t k = 0; k < p.kernels.size(); k++) {
		launch(in_order, p, k, 4);
		launch(any_order, p, k, 8);
	}
	move_memory(p, in_order, from, to, size);
	MUST(CommandList, Close, in_order);
	MUST(CommandList, Close, any_order);
	for (long round = 0; round < rounds; round++) {
		run_list(queue, in_order);
		run_list(queue, any_order, fence);
		fence_ns += timed([&] { MUST(Fence, HostSynchronize, fence, UINT64_MAX); });
		MUST(Fence, Reset, fence);
		for (size_t k = 0; k < p.kernels.size(); k++) {
			launch(immediate, p, k, 16);
			launch(synchronous, p, k, 32);
		}
		queue_ns += timed([&] { MUST(CommandQueue, Synchronize, queue, UINT64_MAX); });
		account.called("zeCommandQueueSynchronize");
	}
	for (auto event : events)
		launch(immediate, p, 0, 1, event);
	queue_ns += timed([&] { MUST(CommandQueue, Synchronize, queue, UINT64_MAX); });
	account.called("zeCommandQueueSynchronize");
	account.also("zeFenceHostSynchronize", std::to_string(fence_ns));
	account.also("zeCommandQueueSynchronize", std::to_string(queue_ns));
	if (!real) {
		note_times(events);
		bool right = memcmp(from, to, size) == 0 && to[1] == 3;
		account.also("memory_ok", right ? "true" : "false");
	}

	for (auto event : events)
		MUST(Event, Destroy, event);
	MUST(EventPool, Destroy, pool);
	MUST(Fence, Destroy, fence);
	for (auto list : {in_order, any_order, immediate, synchronous})
		MUST(CommandList, Destroy, list);
	MUST(CommandQueue, Destroy, queue);
	for (auto kernel : p.kernels)
		MUST(Kernel, Destroy, kernel);
	MUST(Module, Destroy, p.module);
	for (void *memory : {static_cast<void *>(from), static_cast<void *>(to), p.buffer})
		MUST(Mem, Free, p.context, memory);
	MUST(Context, Destroy, p.context);
	return 0;
}

static int newer(const Options &options)
{
	Program p(options);
	auto with_arguments = p.extension<LaunchWithArguments>(
		"zeCommandListAppendLaunchKernelWithArguments");
	auto with_parameters = p.extension<LaunchWithParameters>(
		"zeCommandListAppendLaunchKernelWithParameters");
	auto append_lists =
		p.extension<AppendLists>("zeCommandListImmediateAppendCommandListsExp");
	auto synchronize = p.extension<ListSynchronize>("zeCommandListHostSynchronize");
	auto new_event = p.extension<CounterEventCreate>("zexCounterBasedEventCreate2");
	auto copy = p.extension<CopyWithParameters>("zeCommandListAppendMemoryCopyWithParameters");
	auto base_address = p.extension<BaseAddress>("zexKernelGetBaseAddress");
	if (!with_arguments || !with_parameters || !append_lists || !synchronize || !new_event ||
	    !copy || !base_address)
		die("an extension function is missing", 0);
	auto immediate = p.immediate(2);
	auto list = p.list();
	launch(list, p, 0, 4);
	MUST(CommandList, Close, list);
	CounterEventDesc desc = {0x2003a, nullptr, 1 | 4 | 16, 0, 0};
	ze_event_handle_t event;
	check(new_event(p.context, p.device, &desc, &event), "zexCounterBasedEventCreate2");
	void *arguments[3] = {&p.buffer, &p.buffer, nullptr};
	long rounds = options.number("rounds", 1);
	for (long round = 0; round < rounds; round++) {
		ze_group_count_t groups = {5, 6, 7};
		GroupSize size = {32, 2, 1};
		account.add(p.names[0], 2);
		account.called("zeCommandListAppendLaunchKernelWithArguments");
		check(with_arguments(immediate, p.kernels[0], groups, size, arguments, nullptr,
				     nullptr, 0, nullptr),
		      "zeCommandListAppendLaunchKernelWithArguments");
		account.called("zeCommandListAppendLaunchKernelWithParameters");
		check(with_parameters(immediate, p.kernels[0], &groups, nullptr, event, 0, nullptr),
		      "zeCommandListAppendLaunchKernelWithParameters");
		account.called("zeCommandListImmediateAppendCommandListsExp");
		check(append_lists(immediate, 1, &list, nullptr, 1, &event),
		      "zeCommandListImmediateAppendCommandListsExp");
		account.called("zeCommandListAppendMemoryCopyWithParameters");
		check(copy(immediate, p.buffer, static_cast<char *>(p.buffer) + 4096, 4096, nullptr,
			   nullptr, 0, nullptr),
		      "zeCommandListAppendMemoryCopyWithParameters");
		check(synchronize(immediate, UINT64_MAX), "zeCommandListHostSynchronize");
	}
	note_times({event});
	std::string addresses = "{";
	for (size_t k = 0; k < p.kernels.size(); k++) {
		uint64_t base = 0;
		check(base_address(p.kernels[k], &base), "zexKernelGetBaseAddress");
		addresses += (k ? ",\"" : "\"") + p.names[k] + "\":" + std::to_string(base);
	}
	account.also("base", addresses + "}");
	return 0;
}

static int paths(const Options &options)
{
	Program p(options);
	auto list = p.immediate(2);
	long rounds = options.number("rounds", 1);
	/* Path n launches n + 1 times each round. */
	for (long round = 0; round < rounds; round++)
		for (int path = 0; path < WALK_PATHS; path++)
			for (int i = 0; i <= path; i++)
				walk_path(path, [&](int at) { launch(list, p, 0, at + 1); });
	MUST(CommandList, Destroy, list);
	std::string counts = "[";
	for (int i = 0; i < WALK_PATHS; i++)
		counts += (i ? "," : "") + std::to_string(rounds * (i + 1));
	account.also("paths", counts + "]");
	return 0;
}

static void launch_many(Program &p, size_t kernel, long launches)
{
	auto list = p.immediate(2);
	/* Drivers may write to a kernel when it is launched: one for each thread. */
	auto own = p.kernel(p.names[kernel]);
	ze_group_count_t count = {static_cast<uint32_t>(kernel + 1), 1, 1};
	for (long i = 0; i < launches; i++)
		MUST(CommandList, AppendLaunchKernel, list, own, &count, nullptr, 0, nullptr);
	account.add(p.names[kernel], static_cast<uint64_t>(launches));
	MUST(CommandList, Destroy, list);
	MUST(Kernel, Destroy, own);
}

static int threads(const Options &options)
{
	Program p(options);
	long n = options.number("threads", 8 * sysconf(_SC_NPROCESSORS_ONLN));
	long launches = options.number("launches", 100);
	std::vector<std::thread> all;
	for (long i = 0; i < n; i++)
		all.emplace_back([&p, i, launches] { launch_many(p, i % p.kernels.size(), launches); });
	for (auto &thread : all)
		thread.join();
	return 0;
}

/* Each child is a program of its own; all print their accounts. */
static int forks(const Options &options)
{
	long children = options.number("children", 3), launches = options.number("launches", 10);
	Program p(options);
	launch_many(p, 0, launches);
	for (long i = 0; i < children; i++) {
		pid_t child = fork();
		if (child < 0)
			die("fork", 0);
		if (child > 0)
			continue;
		new (&account) Account;
		Program own(options);
		launch_many(own, own.kernels.size() - 1, launches + i);
		account.print("fork");
		exit(0);
	}
	int failed = 0;
	for (int status; wait(&status) > 0;)
		failed += status != 0;
	launch_many(p, 0, launches);
	return failed;
}

static int rate(const Options &options)
{
	Program p(options);
	auto list = p.immediate(2);
	double per_second = static_cast<double>(options.number("rate", 1000));
	double start = seconds_now(), end = start + static_cast<double>(options.number("seconds", 1));
	uint64_t done = 0;
	for (double now = start; now < end; now = seconds_now()) {
		auto due = static_cast<uint64_t>((now - start) * per_second);
		for (; done < due; done++) {
			ze_group_count_t count = {1, 1, 1};
			MUST(CommandList, AppendLaunchKernel, list,
			     p.kernels[done % p.kernels.size()], &count, nullptr, 0, nullptr);
		}
		usleep(200);
	}
	for (size_t k = 0; k < p.kernels.size(); k++)
		account.add(p.names[k], done / p.kernels.size() + (k < done % p.kernels.size()));
	account.also("seconds", std::to_string(seconds_now() - start));
	MUST(CommandList, Destroy, list);
	return 0;
}

static std::atomic<bool> is_over;

static NOINLINE uint64_t spin(ze_kernel_handle_t kernel, ze_command_list_handle_t list, double end)
{
	uint64_t done = 0;
	ze_group_count_t count = {1, 1, 1};
	while (seconds_now() < end && !is_over)
		for (int i = 0; i < 1000; i++, done++)
			MUST(CommandList, AppendLaunchKernel, list, kernel, &count, nullptr, 0,
			     nullptr);
	return done;
}

static int loop(const Options &options)
{
	Program p(options);
	double seconds = atof(options.text("seconds", "0").c_str());
	double end = seconds > 0 ? seconds_now() + seconds : INFINITY;
	std::vector<std::thread> all;
	for (long i = 0; i < options.number("threads", 1); i++)
		all.emplace_back([&p, end] {
			auto list = p.immediate(2);
			double from = seconds_now();
			auto kernel = p.kernel(p.names[0]);
			uint64_t done = spin(kernel, list, end);
			double took = seconds_now() - from;
			account.add(p.names[0], done);
			account.also("ns_per_launch",
				     std::to_string(took * 1e9 / static_cast<double>(done)));
			MUST(CommandList, Destroy, list);
			MUST(Kernel, Destroy, kernel);
		});
	if (seconds <= 0) {
		printf("looping\n");
		fflush(stdout);
		getchar();
		is_over = true;
	}
	for (auto &thread : all)
		thread.join();
	return 0;
}

/* Chooses each of n kernels a different number of times: an exchanged name shows. */
static size_t uneven(long i, size_t n)
{
	size_t at = static_cast<size_t>(i) % (n * (n + 1) / 2), k = 0;
	while (at > k)
		at -= ++k;
	return k;
}

static int late(const Options &options)
{
	Program p(options);
	auto list = p.immediate(2);
	size_t native = 0;
	MUST(Module, GetNativeBinary, p.module, &native, nullptr);
	account.also("native", std::to_string(native));
	printf("ready\n");
	fflush(stdout);
	/* The end of stdin will do as well. */
	getchar();
	long pause = options.number("pause_us", 0);
	for (long i = 0; i < options.number("launches", 100); i++) {
		launch(list, p, uneven(i, p.kernels.size()), 1);
		if (pause > 0)
			usleep(static_cast<useconds_t>(pause));
	}
	printf("launched\n");
	fflush(stdout);
	getchar();
	MUST(CommandList, Destroy, list);
	return 0;
}

/* What a program that links ittnotify has, as long as there is no collector. */
extern "C" NOINLINE void __itt_pause_init_3_0()
{
	asm volatile("");
}

extern "C" NOINLINE void __itt_resume_init_3_0()
{
	asm volatile("");
}

static int paused(const Options &options)
{
	Program p(options);
	auto list = p.immediate(2);
	auto launch_often = [&](int n) {
		for (int i = 0; i < n; i++)
			launch(list, p, 0, 1);
	};
	launch_often(5);
	setenv("PTI_ENABLE_COLLECTION", "1", 1);
	launch_often(7);
	setenv("PTI_ENABLE_COLLECTION", "1", 0);
	setenv("PTI_ENABLE_COLLECTION", "0", 1);
	launch_often(11);
	__itt_resume_init_3_0();
	launch_often(13);
	__itt_pause_init_3_0();
	launch_often(17);
	MUST(CommandList, Destroy, list);
	return 0;
}

/* Every kernel is replaced by the next one of the module, which may get its handle. */
static int reuse(const Options &options)
{
	Program p(options);
	auto list = p.immediate(2);
	printf("ready\n");
	fflush(stdout);
	getchar();
	size_t n = p.kernels.size(), same = 0;
	auto all = p.names;
	auto launch_often = [&](size_t k) {
		auto index = std::find(all.begin(), all.end(), p.names[k]) - all.begin();
		for (long i = 0; i <= index; i++)
			launch(list, p, k, 1);
	};
	for (long round = 0; round < options.number("rounds", 10); round++) {
		for (size_t k = 0; k < n; k++) {
			launch_often(k);
			auto old = p.kernels[k];
			MUST(Kernel, Destroy, old);
			p.names[k] = p.names[(k + 1) % n];
			/* This one does not exist: the handle is left as it was. */
			ze_kernel_desc_t desc = {ZE_STRUCTURE_TYPE_KERNEL_DESC, nullptr, 0, "missing"};
			if (ZE(Kernel, Create)(p.module, &desc, &p.kernels[k]) == ZE_RESULT_SUCCESS)
				die("a kernel that is not there", 0);
			p.kernels[k] = p.kernel(p.names[k]);
			same += p.kernels[k] == old;
			launch_often(k);
		}
	}
	account.also("same", std::to_string(same));
	printf("launched\n");
	fflush(stdout);
	getchar();
	MUST(CommandList, Destroy, list);
	return 0;
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		int (*run)(const Options &);
	} modes[] = {
		{"basic", basic}, {"newer", newer}, {"paths", paths}, {"threads", threads},
		{"fork", forks},  {"rate", rate},   {"loop", loop},   {"late", late},
		{"reuse", reuse}, {"paused", paused},
	};
	for (auto &mode : modes) {
		if (argc > 1 && strcmp(argv[1], mode.name) == 0) {
			int status = mode.run(Options(argc, argv));
			account.print(mode.name);
			return status;
		}
	}
	fprintf(stderr, "usage: ze_work MODE module=FILE [key=value...]\n");
	return 2;
}
