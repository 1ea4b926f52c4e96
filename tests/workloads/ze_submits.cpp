/*
 * Launches that are handed to the driver in different ways:
 * `ze_submits MODE module=FILE [key=value...]`.
 *
 *   immediate  rounds=N times append_0 and append_1 put a kernel on an immediate list.
 *   queue      append_0, append_1 and append_2 put one each on lists. These are executed
 *              rounds=N times: the first by submit_plain, by submit_fenced, and with the
 *              second list by submit_plain on another thread. append_0 has put one on a
 *              third list, which is never executed.
 *
 * Everything is over after pause_us=N behind each of these calls. It prints what it did
 * as one line of JSON. Its member `appends` has the numbers of the launch calls of each
 * append_N, `submits` those of the calls of each submit_NAME that execute lists.
 */
#include "known.h"
#include "ze.h"

#include <thread>

static Account account;
typedef uint64_t (*LastSeq)();

struct Work {
	Program &p;
	LastSeq last_seq;
	std::map<std::string, std::vector<uint64_t>> appends, submits;
	ze_command_queue_handle_t queue = nullptr;
	ze_fence_handle_t fence = nullptr;

	void append(const char *path, ze_command_list_handle_t list, int kernel)
	{
		ze_group_count_t one = {1, 1, 1};
		MUST(CommandList, AppendLaunchKernel, list, p.kernels[kernel], &one, nullptr, 0,
		     nullptr);
		appends[path].push_back(last_seq());
	}

	void submit(const char *path, std::vector<ze_command_list_handle_t> lists,
		    ze_fence_handle_t with)
	{
		auto count = static_cast<uint32_t>(lists.size());
		MUST(CommandQueue, ExecuteCommandLists, queue, count, lists.data(), with);
		submits[path].push_back(last_seq());
	}
};

#define APPEND(n)                                                                                  \
	extern "C" NOINLINE void append_##n(Work &work, ze_command_list_handle_t list, int kernel) \
	{                                                                                          \
		work.append(#n, list, kernel);                                                     \
		asm volatile("");                                                                  \
	}
APPEND(0)
APPEND(1)
APPEND(2)

extern "C" NOINLINE void submit_plain(Work &work, std::vector<ze_command_list_handle_t> lists)
{
	work.submit("plain", lists, nullptr);
	asm volatile("");
}

extern "C" NOINLINE void submit_fenced(Work &work, std::vector<ze_command_list_handle_t> lists)
{
	work.submit("fenced", lists, work.fence);
	MUST(Fence, HostSynchronize, work.fence, UINT64_MAX);
	MUST(Fence, Reset, work.fence);
}

static void immediate(const Options &options, Work &work)
{
	auto synchronize = work.p.extension<ListSynchronize>("zeCommandListHostSynchronize");
	auto list = work.p.immediate();
	for (long i = 0; i < options.number("rounds", 10); i++) {
		(i % 2 == 0 ? append_0 : append_1)(work, list, 0);
		check(synchronize(list, UINT64_MAX), "zeCommandListHostSynchronize");
		usleep(static_cast<useconds_t>(options.number("pause_us", 0)));
	}
}

static void queue(const Options &options, Work &work)
{
	work.queue = work.p.queue();
	ze_fence_desc_t desc = {ZE_STRUCTURE_TYPE_FENCE_DESC, nullptr, 0};
	MUST(Fence, Create, work.queue, &desc, &work.fence);
	auto first = work.p.list(), second = work.p.list(), never = work.p.list();
	append_0(work, first, 0);
	append_1(work, first, 1);
	append_2(work, second, 0);
	append_0(work, never, 0);
	for (auto list : {first, second, never})
		MUST(CommandList, Close, list);
	auto wait = [&] {
		MUST(CommandQueue, Synchronize, work.queue, UINT64_MAX);
		usleep(static_cast<useconds_t>(options.number("pause_us", 0)));
	};
	for (long i = 0; i < options.number("rounds", 10); i++) {
		submit_plain(work, {first});
		wait();
		submit_fenced(work, {first});
		wait();
		std::thread([&] {
			submit_plain(work, {first, second});
			wait();
		}).join();
	}
}

static std::string json(const std::map<std::string, std::vector<uint64_t>> &all)
{
	std::string out = "{";
	for (auto &[path, seqs] : all) {
		out += (out == "{" ? "\"" : ",\"") + path + "\":[";
		for (size_t i = 0; i < seqs.size(); i++)
			out += (i ? "," : "") + std::to_string(seqs[i]);
		out += "]";
	}
	return out + "}";
}

int main(int argc, char **argv)
{
	std::string mode = argc > 1 ? argv[1] : "";
	if (mode != "immediate" && mode != "queue") {
		fprintf(stderr, "usage: ze_submits immediate|queue module=FILE [key=value...]\n");
		return 2;
	}
	Options options(argc, argv);
	Program p(options);
	auto base_address = p.extension<BaseAddress>("zexKernelGetBaseAddress");
	for (auto kernel : p.kernels) {
		uint64_t base = 0;
		check(base_address(kernel, &base), "zexKernelGetBaseAddress");
	}
	wait_until_known();
	Work work{p, hook_function<LastSeq>("vze_last_seq"), {}, {}};
	if (mode == "immediate")
		immediate(options, work);
	else
		queue(options, work);
	account.also("appends", json(work.appends));
	account.also("submits", json(work.submits));
	account.print(mode.c_str());
	return 0;
}
