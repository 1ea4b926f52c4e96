/*
 * Ways of a Level Zero program to hand its device work and to wait for it:
 * `ze_timing WAY[,WAY..] module=FILE [rounds=N]`. It prints what it launched, and what it
 * saw, as one line of JSON; every call must succeed.
 *
 *   reused     a recorded list, run again after each wait.
 *   twice      a recorded list, run several times before a wait.
 *   immediate  immediate lists, in any order and in order, and copies and fills.
 *   events     out of order, with events between that have no timestamps.
 *   reset      an event that is waited for and reset at once, over and over.
 *   signals    the program's own events in a recorded list, reset between its runs.
 *   chained    recorded lists that an immediate list runs.
 *   counters   counter-based events.
 *   cycle      a recorded list that resets its event itself.
 *   shared     one event for two launches, never reset.
 *   devices    two devices, a context and a thread each.
 *   teardown   everything is destroyed as soon as the wait is over, over and over.
 *   own        the program reads timestamps itself.
 *   fork       a child goes on with what its parent has made.
 */
#include "ze.h"

#include <thread>

#include <sys/wait.h>

static Account account;
static long rounds;

static NOINLINE void launch(Program &p, ze_command_list_handle_t list, size_t kernel,
			    ze_event_handle_t signal = nullptr, uint32_t waits = 0,
			    ze_event_handle_t *waited = nullptr)
{
	ze_group_count_t count = {3, 2, 1};
	kernel %= p.kernels.size();
	MUST(CommandList, AppendLaunchKernel, list, p.kernels[kernel], &count, signal, waits,
	     waited);
	account.add(p.names[kernel], 1);
}

static void run(ze_command_queue_handle_t queue, ze_command_list_handle_t list)
{
	MUST(CommandQueue, ExecuteCommandLists, queue, 1, &list, nullptr);
}

static void wait(ze_command_queue_handle_t queue)
{
	MUST(CommandQueue, Synchronize, queue, UINT64_MAX);
}

static void wait(Program &p, ze_command_list_handle_t list)
{
	auto all = p.extension<ListSynchronize>("zeCommandListHostSynchronize");
	check(all(list, UINT64_MAX), "zeCommandListHostSynchronize");
}

/* Without timestamps, as most programs have them. */
static ze_event_pool_handle_t plain_pool(Program &p, uint32_t count)
{
	ze_event_pool_desc_t desc = {ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, nullptr,
				     ZE_EVENT_POOL_FLAG_HOST_VISIBLE, count};
	ze_event_pool_handle_t out;
	MUST(EventPool, Create, p.context, &desc, 1, &p.device, &out);
	return out;
}

static void recorded(Program &p, long runs)
{
	auto queue = p.queue();
	auto list = p.list();
	for (size_t k = 0; k < 5; k++)
		launch(p, list, k);
	MUST(CommandList, Close, list);
	for (long round = 0; round < rounds; round++) {
		for (long i = 0; i < runs; i++)
			run(queue, list);
		wait(queue);
	}
	MUST(CommandList, Reset, list);
	launch(p, list, 1);
	MUST(CommandList, Close, list);
	run(queue, list);
	wait(queue);
	MUST(CommandList, Destroy, list);
	MUST(CommandQueue, Destroy, queue);
}

static void immediate(Program &p)
{
	auto any = p.immediate(), ordered = p.immediate(2), waiting = p.immediate(0, true);
	for (long i = 0; i < rounds * 10; i++) {
		launch(p, any, static_cast<size_t>(i));
		launch(p, ordered, static_cast<size_t>(i) + 1);
		uint32_t pattern = 7;
		MUST(CommandList, AppendMemoryFill, any, p.buffer, &pattern, 4, 4096, nullptr, 0,
		     nullptr);
		char *half = static_cast<char *>(p.buffer) + 8192;
		MUST(CommandList, AppendMemoryCopy, ordered, half, p.buffer, 4096, nullptr, 0,
		     nullptr);
		launch(p, waiting, 0);
	}
	wait(p, any);
	wait(p, ordered);
	for (auto list : {any, ordered, waiting})
		MUST(CommandList, Destroy, list);
}

static void events(Program &p)
{
	auto pool = plain_pool(p, 3);
	ze_event_handle_t event[3] = {p.event(pool, 0), p.event(pool, 1), p.event(pool, 2)};
	auto list = p.immediate();
	for (long round = 0; round < rounds; round++) {
		launch(p, list, 0, event[0]);
		launch(p, list, 1, event[1]);
		launch(p, list, 2, event[2], 2, event);
		launch(p, list, 1, nullptr, 1, &event[2]);
		MUST(CommandList, AppendBarrier, list, nullptr, 0, nullptr);
		wait(p, list);
		for (auto one : event)
			MUST(Event, HostReset, one);
	}
	for (auto one : event)
		MUST(Event, Destroy, one);
	MUST(EventPool, Destroy, pool);
	MUST(CommandList, Destroy, list);
}

static void reset(Program &p)
{
	auto pool = plain_pool(p, 1);
	auto event = p.event(pool, 0);
	auto list = p.immediate();
	for (long round = 0; round < rounds * 10; round++) {
		launch(p, list, static_cast<size_t>(round), event);
		MUST(Event, HostSynchronize, event, UINT64_MAX);
		MUST(Event, HostReset, event);
	}
	MUST(Event, Destroy, event);
	MUST(EventPool, Destroy, pool);
	MUST(CommandList, Destroy, list);
}

static void signals(Program &p)
{
	auto pool = plain_pool(p, 2);
	ze_event_handle_t event[2] = {p.event(pool, 0), p.event(pool, 1)};
	auto queue = p.queue();
	auto list = p.list();
	launch(p, list, 0, event[0]);
	launch(p, list, 1, event[1], 1, event);
	launch(p, list, 0);
	MUST(CommandList, Close, list);
	for (long round = 0; round < rounds; round++) {
		run(queue, list);
		wait(queue);
		for (auto one : event)
			MUST(Event, HostReset, one);
	}
	MUST(CommandList, Destroy, list);
	for (auto one : event)
		MUST(Event, Destroy, one);
	MUST(EventPool, Destroy, pool);
	MUST(CommandQueue, Destroy, queue);
}

static void chained(Program &p)
{
	auto append = p.extension<AppendLists>("zeCommandListImmediateAppendCommandListsExp");
	auto target = p.immediate(2);
	ze_command_list_handle_t lists[2] = {p.list(8), p.list(8)};
	for (auto list : lists) {
		launch(p, list, 0);
		launch(p, list, 1);
		MUST(CommandList, Close, list);
	}
	for (long round = 0; round < rounds; round++) {
		check(append(target, 2, lists, nullptr, 0, nullptr), "append lists");
		wait(p, target);
	}
	for (auto list : {lists[0], lists[1], target})
		MUST(CommandList, Destroy, list);
}

static void counters(Program &p)
{
	auto create = p.extension<CounterEventCreate>("zeEventCounterBasedCreate");
	CounterEventDesc desc = {0x2002a, nullptr, 1 | 4, 4, 4};
	ze_event_handle_t event;
	check(create(p.context, p.device, &desc, &event), "zeEventCounterBasedCreate");
	auto list = p.immediate(2);
	for (long round = 0; round < rounds; round++) {
		launch(p, list, 0, event);
		MUST(Event, HostSynchronize, event, UINT64_MAX);
	}
	MUST(Event, Destroy, event);
	MUST(CommandList, Destroy, list);
}

static void cycle(Program &p)
{
	auto pool = plain_pool(p, 1);
	auto event = p.event(pool, 0);
	auto queue = p.queue();
	auto list = p.list();
	launch(p, list, 0, event);
	launch(p, list, 1, nullptr, 1, &event);
	MUST(CommandList, AppendEventReset, list, event);
	MUST(CommandList, Close, list);
	for (long round = 0; round < rounds; round++) {
		run(queue, list);
		wait(queue);
	}
	MUST(CommandList, Destroy, list);
	MUST(Event, Destroy, event);
	MUST(EventPool, Destroy, pool);
	MUST(CommandQueue, Destroy, queue);
}

static void shared(Program &p)
{
	auto pool = plain_pool(p, 1);
	auto event = p.event(pool, 0);
	auto list = p.immediate();
	launch(p, list, 0, event);
	launch(p, list, 1, event);
	wait(p, list);
	launch(p, list, 2, event);
	wait(p, list);
	MUST(Event, Destroy, event);
	MUST(EventPool, Destroy, pool);
	MUST(CommandList, Destroy, list);
}

static void on_device(const Options &options, const char *number)
{
	Options own = options;
	own.all["device"] = number;
	Program p(own);
	auto list = p.immediate();
	auto queue = p.queue();
	auto recorded = p.list();
	launch(p, recorded, 1);
	MUST(CommandList, Close, recorded);
	for (long round = 0; round < rounds * 5; round++) {
		launch(p, list, static_cast<size_t>(round));
		run(queue, recorded);
		wait(queue);
	}
	wait(p, list);
	MUST(CommandList, Destroy, list);
	MUST(CommandList, Destroy, recorded);
	MUST(CommandQueue, Destroy, queue);
	for (auto kernel : p.kernels)
		MUST(Kernel, Destroy, kernel);
	MUST(Module, Destroy, p.module);
	MUST(Mem, Free, p.context, p.buffer);
	MUST(Context, Destroy, p.context);
}

static void devices(const Options &options)
{
	std::thread other([&] { on_device(options, "1"); });
	on_device(options, "0");
	other.join();
}

static void teardown(const Options &options)
{
	for (long round = 0; round < rounds; round++) {
		Program p(options);
		auto list = p.immediate();
		auto pool = plain_pool(p, 1);
		auto event = p.event(pool, 0);
		launch(p, list, 0);
		launch(p, list, 1, event);
		wait(p, list);
		MUST(Event, Destroy, event);
		MUST(EventPool, Destroy, pool);
		MUST(CommandList, Destroy, list);
		for (auto kernel : p.kernels)
			MUST(Kernel, Destroy, kernel);
		MUST(Module, Destroy, p.module);
		MUST(Mem, Free, p.context, p.buffer);
		MUST(Context, Destroy, p.context);
	}
}

static void own(Program &p)
{
	auto pool = p.pool(1);
	auto event = p.event(pool, 0);
	auto list = p.immediate();
	std::string ok = "true";
	for (long round = 0; round < rounds; round++) {
		launch(p, list, 1, event);
		MUST(Event, HostSynchronize, event, UINT64_MAX);
		ze_kernel_timestamp_result_t t = {};
		MUST(Event, QueryKernelTimestamp, event, &t);
		if (t.global.kernelEnd == t.global.kernelStart)
			ok = "false";
		MUST(Event, HostReset, event);
		if (ZE(Event, QueryStatus)(event) != ZE_RESULT_NOT_READY)
			ok = "false";
	}
	account.also("own_ok", ok);
	MUST(Event, Destroy, event);
	MUST(EventPool, Destroy, pool);
	MUST(CommandList, Destroy, list);
}

static void forked(Program &p)
{
	auto list = p.immediate();
	for (long round = 0; round < rounds; round++)
		launch(p, list, 0);
	wait(p, list);
	pid_t child = fork();
	for (long round = 0; round < rounds; round++) {
		launch(p, list, 1);
		wait(p, list);
	}
	if (child == 0) {
		account.print("child");
		exit(0);
	}
	int status = 0;
	if (waitpid(child, &status, 0) != child || status != 0)
		die("child", status);
	MUST(CommandList, Destroy, list);
}

int main(int argc, char **argv)
{
	Options options(argc, argv);
	rounds = options.number("rounds", 10);
	for_each_shape(argc > 1 ? argv[1] : "", [&](const std::string &way) {
		if (way == "devices") {
			devices(options);
			return true;
		}
		if (way == "teardown") {
			teardown(options);
			return true;
		}
		const std::map<std::string, void (*)(Program &)> ways = {
			{"reused", [](Program &p) { recorded(p, 1); }},
			{"twice", [](Program &p) { recorded(p, 3); }},
			{"immediate", immediate},
			{"events", events},
			{"reset", reset},
			{"signals", signals},
			{"chained", chained},
			{"counters", counters},
			{"cycle", cycle},
			{"shared", shared},
			{"own", own},
			{"fork", forked},
		};
		auto found = ways.find(way);
		if (found == ways.end())
			return false;
		Program p(options);
		found->second(p);
		return true;
	});
	account.print("timing");
	return 0;
}
