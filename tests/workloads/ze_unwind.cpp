/*
 * Leaves every call of the virtual Level Zero driver in every way there is:
 * `ze_unwind module=FILE what=ACTION rounds=N`. The driver's test hook runs code of
 * this program inside the call, which then
 *
 *   throw      throws a C++ exception that the caller catches.
 *   longjmp    jumps back to the caller.
 *   backtrace  asks for the stack and compares it with the caller's.
 *   cancel     ends its thread by pthread_cancel.
 *   return     does nothing.
 *
 * A program with a profiler must print the same as one without.
 */
#include "ze.h"

#include <csetjmp>
#include <functional>

#include <execinfo.h>
#include <level_zero/zet_api.h>
#include <pthread.h>

typedef void (*HookNext)(const char *, void (*)(void *), void *);

static Account account;

struct Leave {
	std::string message;
};

constexpr int MAX_FRAMES = 128;

/* One call and what is to happen inside. */
struct Visit {
	std::string action;
	bool reached = false;
	bool right = true;
	jmp_buf back;
	void *frames[MAX_FRAMES];
	int depth = 0;
};

/* The frames above the call must be the ones that the caller saw. */
static NOINLINE void compare_stack(Visit &visit)
{
	void *frames[MAX_FRAMES];
	int depth = backtrace(frames, MAX_FRAMES);
	/* The caller's own frame has another return address now. */
	int same = visit.depth - 2;
	visit.right = depth > visit.depth && same > 0;
	for (int i = 1; visit.right && i <= same; i++)
		visit.right = frames[depth - i] == visit.frames[visit.depth - i];
}

static void inside(void *argument)
{
	auto &visit = *static_cast<Visit *>(argument);
	visit.reached = true;
	if (visit.action == "throw")
		throw Leave{"left"};
	if (visit.action == "longjmp")
		longjmp(visit.back, 1);
	if (visit.action == "backtrace")
		compare_stack(visit);
	if (visit.action == "cancel") {
		pthread_cancel(pthread_self());
		pthread_testcancel();
	}
}

struct Step {
	const char *name;
	std::function<void()> call;
};

/* Has a clean-up of its own that every way out but longjmp must run. */
struct Guard {
	int &count;
	~Guard() { count++; }
};

static NOINLINE void leave_once(const Step &step, Visit &visit, int &cleaned)
{
	visit.depth = backtrace(visit.frames, MAX_FRAMES);
	if (visit.action == "longjmp") {
		if (setjmp(visit.back) == 0)
			step.call();
		cleaned++;
		return;
	}
	Guard guard{cleaned};
	try {
		step.call();
	} catch (const Leave &leave) {
		visit.right = visit.action == "throw" && leave.message == "left";
	}
}

struct Task {
	HookNext hook;
	const Step *step;
	Visit visit;
	int cleaned = 0;
};

static void *run_task(void *argument)
{
	auto &task = *static_cast<Task *>(argument);
	task.hook(task.step->name, inside, &task.visit);
	leave_once(*task.step, task.visit, task.cleaned);
	return nullptr;
}

/* In a thread of its own, which pthread_cancel ends. */
static void do_step(HookNext hook, const Step &step, const std::string &action)
{
	Task task = {hook, &step, {}, 0};
	task.visit.action = action;
	void *status = nullptr;
	if (action == "cancel") {
		pthread_t thread;
		if (pthread_create(&thread, nullptr, run_task, &task) != 0)
			die("pthread_create", 0);
		pthread_join(thread, &status);
		task.visit.right = status == PTHREAD_CANCELED;
	} else {
		run_task(&task);
	}
	if (!task.visit.reached || !task.visit.right || task.cleaned != 1) {
		fprintf(stderr, "ze_unwind: %s through %s: reached %d, right %d, cleaned %d\n",
			action.c_str(), step.name, task.visit.reached, task.visit.right,
			task.cleaned);
		_exit(1);
	}
	account.called(step.name);
}

/* The result does not matter: the call is left before it does anything, or does
 * what it does. */
#define STEP(group, function, ...)                                                                 \
	{"ze" #group #function, [=] { (void)ZE(group, function)(__VA_ARGS__); }}

template <typename F, typename... A> Step newer(Program &p, const char *name, A... arguments)
{
	auto function = p.extension<F>(name);
	if (function == nullptr)
		die(name, 0);
	return {name, [=] { (void)function(arguments...); }};
}

/* Calls with arguments that work, so that `return` and `backtrace` do no harm.
 * What would destroy something gets a null handle. */
static std::vector<Step> steps(Program &p)
{
	static ze_group_count_t groups = {1, 1, 1};
	static ze_device_properties_t device_properties = {};
	static ze_kernel_properties_t kernel_properties = {};
	static ze_memory_allocation_properties_t memory = {};
	static ze_kernel_timestamp_result_t times = {};
	static uint32_t count = 0, x = 1, y = 1, z = 1, pattern = 0;
	static uint64_t host = 0, ticks = 0;
	static size_t size = 0;
	static void *out = nullptr;
	static ze_driver_handle_t some_driver;
	auto list = p.immediate(2), closed = p.list(), open = p.list();
	auto queue = p.queue();
	auto pool = p.pool(1);
	auto event = p.event(pool, 0);
	auto kernel = p.kernels[0];
	auto module = p.module;
	auto context = p.context;
	auto device = p.device;
	auto driver = p.driver;
	auto buffer = p.buffer;
	static ze_command_list_handle_t lists[1];
	lists[0] = closed;
	MUST(CommandList, Close, closed);
	ze_fence_desc_t fence_desc = {ZE_STRUCTURE_TYPE_FENCE_DESC, nullptr, ZE_FENCE_FLAG_SIGNALED};
	ze_fence_handle_t fence;
	MUST(Fence, Create, queue, &fence_desc, &fence);
	MUST(Event, HostSignal, event);
	ze_command_list_handle_t no_list = nullptr;
	return {
		{"zeInit", [] { (void)ZE_INIT(0); }},
		STEP(Driver, Get, &count, &some_driver),
		STEP(Driver, GetExtensionFunctionAddress, driver, "zexKernelGetBaseAddress", &out),
		STEP(Device, Get, driver, &count, nullptr),
		STEP(Device, GetSubDevices, device, &count, nullptr),
		STEP(Device, GetProperties, device, &device_properties),
		STEP(Device, GetGlobalTimestamps, device, &host, &ticks),
		STEP(Context, Create, driver, nullptr, nullptr),
		STEP(Context, CreateEx, driver, nullptr, 0, nullptr, nullptr),
		STEP(Context, Destroy, nullptr),
		STEP(Module, Create, context, device, nullptr, nullptr, nullptr),
		STEP(Module, Destroy, nullptr),
		STEP(Module, DynamicLink, 0, nullptr, nullptr),
		STEP(Module, GetNativeBinary, module, &size, nullptr),
		STEP(Module, GetKernelNames, module, &count, nullptr),
		STEP(Module, GetFunctionPointer, module, "saxpy", &out),
		STEP(Kernel, Create, module, nullptr, nullptr),
		STEP(Kernel, Destroy, nullptr),
		STEP(Kernel, SetGroupSize, kernel, 16, 1, 1),
		STEP(Kernel, SuggestGroupSize, kernel, 64, 1, 1, &x, &y, &z),
		STEP(Kernel, SetArgumentValue, kernel, 0, 8, nullptr),
		STEP(Kernel, GetProperties, kernel, &kernel_properties),
		STEP(Kernel, GetName, kernel, &size, nullptr),
		STEP(CommandQueue, Create, context, device, nullptr, nullptr),
		STEP(CommandQueue, Destroy, nullptr),
		STEP(CommandQueue, ExecuteCommandLists, queue, 1, lists, nullptr),
		STEP(CommandQueue, Synchronize, queue, UINT64_MAX),
		STEP(CommandList, Create, context, device, nullptr, nullptr),
		STEP(CommandList, CreateImmediate, context, device, nullptr, nullptr),
		STEP(CommandList, Destroy, nullptr),
		STEP(CommandList, Close, no_list),
		STEP(CommandList, Reset, open),
		STEP(CommandList, AppendLaunchKernel, list, kernel, &groups, nullptr, 0, nullptr),
		STEP(CommandList, AppendLaunchCooperativeKernel, list, kernel, &groups, nullptr, 0,
		     nullptr),
		STEP(CommandList, AppendLaunchKernelIndirect, list, kernel, &groups, nullptr, 0,
		     nullptr),
		STEP(CommandList, AppendLaunchMultipleKernelsIndirect, list, 0, nullptr, &count,
		     &groups, nullptr, 0, nullptr),
		STEP(CommandList, AppendMemoryCopy, list, buffer, buffer, 64, nullptr, 0, nullptr),
		STEP(CommandList, AppendMemoryFill, list, buffer, &pattern, 4, 64, nullptr, 0, nullptr),
		STEP(CommandList, AppendMemoryCopyFromContext, list, buffer, context, buffer, 64,
		     nullptr, 0, nullptr),
		STEP(CommandList, AppendMemoryCopyRegion, list, buffer, nullptr, 0, 0, buffer, nullptr,
		     0, 0, nullptr, 0, nullptr),
		STEP(CommandList, AppendBarrier, list, nullptr, 0, nullptr),
		STEP(CommandList, AppendMemoryRangesBarrier, list, 0, nullptr, nullptr, nullptr, 0,
		     nullptr),
		STEP(CommandList, AppendSignalEvent, list, event),
		STEP(CommandList, AppendWaitOnEvents, list, 0, nullptr),
		STEP(CommandList, AppendEventReset, no_list, event),
		STEP(CommandList, AppendWriteGlobalTimestamp, list,
		     static_cast<uint64_t *>(buffer), nullptr, 0, nullptr),
		STEP(CommandList, AppendQueryKernelTimestamps, list, 0, nullptr, buffer, nullptr,
		     nullptr, 0, nullptr),
		STEP(Fence, Create, queue, nullptr, nullptr),
		STEP(Fence, Destroy, nullptr),
		STEP(Fence, HostSynchronize, fence, UINT64_MAX),
		STEP(Fence, QueryStatus, fence),
		STEP(Fence, Reset, nullptr),
		STEP(EventPool, Create, context, nullptr, 0, nullptr, nullptr),
		STEP(EventPool, Destroy, nullptr),
		STEP(Event, Create, pool, nullptr, nullptr),
		STEP(Event, Destroy, nullptr),
		STEP(Event, HostSignal, event),
		STEP(Event, HostReset, nullptr),
		STEP(Event, HostSynchronize, event, UINT64_MAX),
		STEP(Event, QueryStatus, event),
		STEP(Event, QueryKernelTimestamp, event, &times),
		STEP(Mem, AllocDevice, context, nullptr, 64, 64, device, &out),
		STEP(Mem, AllocHost, context, nullptr, 64, 64, &out),
		STEP(Mem, AllocShared, context, nullptr, nullptr, 64, 64, device, &out),
		STEP(Mem, Free, context, nullptr),
		STEP(Mem, FreeExt, context, nullptr, nullptr),
		STEP(Mem, GetAllocProperties, context, buffer, &memory, nullptr),
		STEP(Mem, GetAddressRange, context, buffer, nullptr, nullptr),
		newer<LaunchWithArguments>(p, "zeCommandListAppendLaunchKernelWithArguments", list,
					   kernel, groups, GroupSize{16, 1, 1}, nullptr, nullptr,
					   nullptr, 0, nullptr),
		newer<LaunchWithParameters>(p, "zeCommandListAppendLaunchKernelWithParameters",
					    list, kernel, &groups, nullptr, nullptr, 0, nullptr),
		newer<AppendLists>(p, "zeCommandListImmediateAppendCommandListsExp", list, 1, lists,
				   nullptr, 0, nullptr),
		newer<ListSynchronize>(p, "zeCommandListHostSynchronize", list, UINT64_MAX),
		newer<CopyWithParameters>(p, "zeCommandListAppendMemoryCopyWithParameters", list,
					  buffer, buffer, 64, nullptr, nullptr, 0, nullptr),
		newer<CounterEventCreate>(p, "zexCounterBasedEventCreate2", context, device, nullptr,
					  nullptr),
		newer<CounterEventCreate>(p, "zeEventCounterBasedCreate", context, device, nullptr,
					  nullptr),
		newer<BaseAddress>(p, "zexKernelGetBaseAddress", kernel, &ticks),
		newer<ze_result_t (*)(uint32_t *, ze_driver_handle_t *, void *)>(
			p, "zeInitDrivers", &count, nullptr, nullptr),
		newer<ze_result_t (*)(ze_device_handle_t)>(p, "zeDeviceSynchronize", device),
		newer<ze_result_t (*)(ze_kernel_handle_t, size_t *, uint8_t *)>(
			p, "zeKernelGetBinaryExp", kernel, &size, nullptr),
		newer<ze_result_t (*)(ze_command_list_handle_t, void (*)(void *), void *,
				      const void *, ze_event_handle_t, uint32_t,
				      ze_event_handle_t *)>(
			p, "zeCommandListAppendHostFunction", list, nullptr, nullptr, nullptr,
			nullptr, 0, nullptr),
		newer<ze_result_t (*)(ze_command_list_handle_t, void *, const void *, size_t,
				      size_t, const void *, ze_event_handle_t, uint32_t,
				      ze_event_handle_t *)>(
			p, "zeCommandListAppendMemoryFillWithParameters", list, buffer, &pattern, 4,
			64, nullptr, nullptr, 0, nullptr),
		newer<ze_result_t (*)(ze_command_list_handle_t, void *, const void *, size_t,
				      const void *, uint32_t, ze_event_handle_t *,
				      ze_event_handle_t)>(
			p, "zexCommandListAppendMemoryCopyWithParameters", list, buffer, buffer, 64,
			nullptr, 0, nullptr, nullptr),
#ifndef DIRECT
		{"zeEventQueryTimestampsExp",
		 [=] { (void)zeEventQueryTimestampsExp(event, device, &count, nullptr); }},
		{"zetModuleGetDebugInfo",
		 [=] {
			 (void)zetModuleGetDebugInfo(
				 module, ZET_MODULE_DEBUG_INFO_FORMAT_ELF_DWARF, &size, nullptr);
		 }},
#endif
	};
}

int main(int argc, char **argv)
{
	Options options(argc + 1, argv - 1);
	std::string action = options.text("what", "throw");
	Program p(options);
	auto hook = hook_function<HookNext>("vze_hook_next");
	auto all = steps(p);
	/* The unwinder allocates and locks on its first use. */
	void *warm[4];
	backtrace(warm, 4);
	for (long round = 0; round < options.number("rounds", 1); round++)
		for (const Step &step : all)
			do_step(hook, step, action);
	account.print(action.c_str());
	return 0;
}
