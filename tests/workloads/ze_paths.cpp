/*
 * The same kernel from many call paths: `ze_paths MODE module=FILE [key=value...]`.
 * Path n is the function path_n. What it did is printed as one line of JSON for
 * each process; its member `paths` has the numbers of the launch calls of each path.
 *
 *   launch  launches=N in each of threads=N, from paths=N call paths
 *   reload  rounds=N times: a module is loaded (module= and module2= in turn),
 *           launched from path 0 or 1, and unloaded
 *
 * What decides who is launched when:
 *   plan=even|7030|zipf  how often each path comes, spread as evenly as can be.
 *   block=N              launches of a path before the next one comes.
 *   pause_us=N           after each block; everything is over by then.
 *   sync=N               wait after every N launches; 0: only at the end.
 *   events=1             each launch signals an event with timestamps, read after
 *                        the wait; the device's properties have the length of ticks.
 *   read_us=N            the program does something else before it reads them.
 *   clock=1              the global timestamps are read after each wait.
 *   groups=path          path n launches n + 1 groups; else one.
 *   kernels=path         path n launches the module's n-th kernel, over and over
 *                        again; else the first.
 *   queues=N             each thread takes that many queues in turn.
 *   subs=N               queue n is on sub-device n, over and over again.
 *   base=1               zexKernelGetBaseAddress once for each kernel, before it is
 *                        launched; 2: at the end.
 *   processes=N          as many do the same at once.
 *   forks=N              as many processes are forked when the kernels exist, and
 *                        launch too: the n-th from path n on, this one from path 0.
 *   leave=1              the last launches are not waited for: the process ends
 *                        before them.
 *   warm_us=N            before the first launch of a thread; 300,000 without
 *                        UNTIL_KNOWN, the way to wait until it is known.
 *   wait=1               prints `ready` when the kernels exist, goes on after a
 *                        line on stdin.
 */
#include "known.h"
#include "ze.h"

#include <sys/wait.h>

#include <thread>

static Account account;
typedef uint64_t (*LastSeq)();

/* Which path comes next, so that shares are right at any time. */
class Plan {
      public:
	explicit Plan(const Options &options)
	{
		long paths = options.number("paths", 2);
		if (paths < 1 || paths > 50)
			die("paths", paths);
		std::string plan = options.text("plan", "even");
		for (long i = 0; i < paths; i++) {
			double weight = 1;
			if (plan == "7030")
				weight = i == 0 ? 0.7 : 0.3 / static_cast<double>(std::max(paths - 1, 1L));
			else if (plan == "zipf")
				weight = 1.0 / static_cast<double>(i + 1);
			weights_.push_back(weight);
			sum_ += weight;
		}
		due_.resize(weights_.size());
	}
	int next()
	{
		size_t best = 0;
		for (size_t i = 0; i < due_.size(); i++) {
			due_[i] += weights_[i];
			if (due_[i] > due_[best] + 1e-9)
				best = i;
		}
		due_[best] -= sum_;
		return static_cast<int>(best);
	}

      private:
	std::vector<double> weights_, due_;
	double sum_ = 0;
};

/* What one thread works with. */
struct Worker {
	const Options &options;
	Program &p;
	LastSeq last_seq;
	std::vector<ze_command_list_handle_t> lists;
	std::vector<ze_kernel_handle_t> kernels;
	ze_event_pool_handle_t pool = nullptr;
	std::vector<ze_event_handle_t> events;
	std::map<int, std::vector<uint64_t>> seqs;
	/* What the plan's first path is. */
	int first_path = 0;
	/* Launches so far, and of those the ones not waited for. */
	size_t done = 0, pending = 0;

	/* The first in order on a list of its own. */
	static constexpr size_t MAX_EVENTS = 512;

	Worker(const Options &o, Program &program, LastSeq seq, long number)
	    : options(o), p(program), last_seq(seq)
	{
		long queues = options.number("queues", 1);
		for (long i = 0; i < queues; i++)
			lists.push_back(new_list(number * queues + i));
		for (auto &name : p.names)
			kernels.push_back(p.kernel(name));
		if (options.number("events", 0) == 0)
			return;
		pool = p.pool(MAX_EVENTS);
		for (size_t i = 0; i < MAX_EVENTS; i++)
			events.push_back(p.event(pool, static_cast<uint32_t>(i)));
	}

	ze_command_list_handle_t new_list(long number)
	{
		ze_device_handle_t device = p.device;
		auto subs = static_cast<uint32_t>(options.number("subs", 0));
		if (subs > 0) {
			std::vector<ze_device_handle_t> children(subs);
			MUST(Device, GetSubDevices, p.device, &subs, children.data());
			device = children[static_cast<size_t>(number) % children.size()];
		}
		ze_command_queue_desc_t desc = {};
		desc.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
		desc.index = static_cast<uint32_t>(number) % 4;
		desc.flags = 2; /* in order */
		desc.mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
		ze_command_list_handle_t out;
		MUST(CommandList, CreateImmediate, p.context, device, &desc, &out);
		return out;
	}

	void launch(int path)
	{
		size_t kernel = options.text("kernels") == "path" ? path % kernels.size() : 0;
		uint32_t groups = options.text("groups") == "path" ? path + 1 : 1;
		ze_group_count_t count = {groups, 1, 1};
		ze_event_handle_t event = events.empty() ? nullptr : events[pending];
		MUST(CommandList, AppendLaunchKernel, lists[done % lists.size()], kernels[kernel],
		     &count, event, 0, nullptr);
		seqs[path].push_back(last_seq());
		account.add(p.names[kernel], 1);
		done++;
		pending++;
	}

	void wait_for_all(ListSynchronize synchronize)
	{
		for (auto list : lists)
			check(synchronize(list, UINT64_MAX), "zeCommandListHostSynchronize");
		usleep(static_cast<useconds_t>(options.number("read_us", 0)));
		for (size_t i = 0; i < pending && i < events.size(); i++) {
			ze_kernel_timestamp_result_t t = {};
			MUST(Event, QueryKernelTimestamp, events[i], &t);
			MUST(Event, HostReset, events[i]);
		}
		if (options.number("clock", 0) != 0) {
			uint64_t host = 0, device = 0;
			MUST(Device, GetGlobalTimestamps, p.device, &host, &device);
		}
		pending = 0;
	}

	void release()
	{
		for (auto event : events)
			MUST(Event, Destroy, event);
		if (pool != nullptr)
			MUST(EventPool, Destroy, pool);
		for (auto kernel : kernels)
			MUST(Kernel, Destroy, kernel);
		for (auto list : lists)
			MUST(CommandList, Destroy, list);
	}
};

#define PATH(n)                                                                                    \
	extern "C" NOINLINE void path_##n(Worker &worker)                                          \
	{                                                                                          \
		worker.launch(n);                                                                  \
		asm volatile("");                                                                  \
	}
#define TEN(t)                                                                                     \
	PATH(t##0)                                                                                 \
	PATH(t##1)                                                                                 \
	PATH(t##2)                                                                                 \
	PATH(t##3)                                                                                 \
	PATH(t##4)                                                                                 \
	PATH(t##5)                                                                                 \
	PATH(t##6)                                                                                 \
	PATH(t##7)                                                                                 \
	PATH(t##8)                                                                                 \
	PATH(t##9)
TEN()
TEN(1)
TEN(2)
TEN(3)
TEN(4)

#define NAMES(t)                                                                                   \
	path_##t##0, path_##t##1, path_##t##2, path_##t##3, path_##t##4, path_##t##5, path_##t##6, \
		path_##t##7, path_##t##8, path_##t##9
static void (*const PATHS[50])(Worker &) = {NAMES(), NAMES(1), NAMES(2), NAMES(3), NAMES(4)};

/* The launch calls of each path, as JSON. */
static std::string paths_json(const std::map<int, std::vector<uint64_t>> &paths)
{
	std::string out = "{";
	for (auto &[path, seqs] : paths) {
		out += (out == "{" ? "\"" : ",\"") + std::to_string(path) + "\":[";
		for (size_t i = 0; i < seqs.size(); i++)
			out += (i ? "," : "") + std::to_string(seqs[i]);
		out += "]";
	}
	return out + "}";
}

static void wait_for_go(const Options &options)
{
	if (options.number("wait", 0) == 0)
		return;
	printf("ready\n");
	fflush(stdout);
	getchar();
}

/* What profilers need when the driver's objects lack the address. */
static void ask_base(const Options &options, Program &p, long when)
{
	if (options.number("base", 0) != when)
		return;
	auto base_address = p.extension<BaseAddress>("zexKernelGetBaseAddress");
	for (auto kernel : p.kernels) {
		uint64_t base = 0;
		check(base_address(kernel, &base), "zexKernelGetBaseAddress");
	}
}

/* Whoever reads timestamps needs to know how long a tick is. */
static void ask_ticks(const Options &options, Program &p)
{
	if (options.number("events", 0) == 0)
		return;
	ze_device_properties_t properties = {};
	properties.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
	MUST(Device, GetProperties, p.device, &properties);
}

static bool is_known;

/* One thread's launches. */
static NOINLINE void work(Worker &worker, ListSynchronize synchronize)
{
	const Options &options = worker.options;
	Plan plan(options);
	long launches = options.number("launches", 100), block = options.number("block", 1);
	auto every = static_cast<size_t>(options.number("sync", 1));
	long pause = options.number("pause_us", 0);
	/* A profiler learns how to walk a program's stacks when that starts. */
	usleep(static_cast<useconds_t>(options.number("warm_us", is_known ? 0 : 300000)));
	size_t most = worker.events.empty() ? SIZE_MAX : Worker::MAX_EVENTS;
	bool leaves = options.number("leave", 0) != 0;
	for (long i = 0; i < launches;) {
		int path = (plan.next() + worker.first_path) % 50;
		for (long k = 0; k < block && i < launches; k++, i++) {
			PATHS[path](worker);
			if ((every > 0 && worker.pending >= every) || worker.pending >= most)
				worker.wait_for_all(synchronize);
		}
		if (pause > 0) {
			worker.wait_for_all(synchronize);
			usleep(static_cast<useconds_t>(pause));
		}
	}
	if (!leaves)
		worker.wait_for_all(synchronize);
}

static int failed_children = 0;

/* Forks; the number of the child, 0 in this process. */
static long fork_children(const Options &options)
{
	for (long i = 1; i <= options.number("forks", 0); i++) {
		pid_t pid = fork();
		if (pid < 0)
			die("fork", 0);
		if (pid == 0)
			return i;
	}
	return 0;
}

static int launch(const Options &options)
{
	Program p(options);
	auto synchronize = p.extension<ListSynchronize>("zeCommandListHostSynchronize");
	auto last_seq = hook_function<LastSeq>("vze_last_seq");
	ask_base(options, p, 1);
	ask_ticks(options, p);
	long child = fork_children(options);
	std::vector<Worker> workers;
	long threads = options.number("threads", 1);
	for (long i = 0; i < threads; i++) {
		workers.emplace_back(options, p, last_seq, i);
		workers.back().first_path = static_cast<int>(child * options.number("paths", 2));
	}
	wait_for_go(options);
	is_known = wait_until_known();
	std::vector<std::thread> others;
	for (size_t i = 1; i < workers.size(); i++)
		others.emplace_back([&, i] { work(workers[i], synchronize); });
	work(workers[0], synchronize);
	for (auto &thread : others)
		thread.join();
	ask_base(options, p, 2);
	std::map<int, std::vector<uint64_t>> all;
	for (Worker &worker : workers) {
		for (auto &[path, seqs] : worker.seqs)
			all[path].insert(all[path].end(), seqs.begin(), seqs.end());
		if (options.number("leave", 0) == 0)
			worker.release();
	}
	account.also("paths", paths_json(all));
	for (int status; child == 0 && options.number("forks", 0) > 0 && wait(&status) > 0;)
		failed_children += status != 0;
	return failed_children;
}

static int reload(const Options &options)
{
	Program p(options);
	auto synchronize = p.extension<ListSynchronize>("zeCommandListHostSynchronize");
	auto last_seq = hook_function<LastSeq>("vze_last_seq");
	wait_for_go(options);
	ask_ticks(options, p);
	std::map<int, std::vector<uint64_t>> all;
	for (long round = 0; round < options.number("rounds", 4); round++) {
		int path = static_cast<int>(round % 2);
		if (round > 0)
			p.load(options.text(path == 0 ? "module" : "module2"), false);
		ask_base(options, p, 1);
		Worker worker(options, p, last_seq, 0);
		for (long i = 0; i < options.number("launches", 100); i++)
			PATHS[path](worker);
		worker.wait_for_all(synchronize);
		ask_base(options, p, 2);
		worker.release();
		auto &seqs = all[path];
		seqs.insert(seqs.end(), worker.seqs[path].begin(), worker.seqs[path].end());
		for (auto kernel : p.kernels)
			MUST(Kernel, Destroy, kernel);
		MUST(Module, Destroy, p.module);
		MUST(Mem, Free, p.context, p.buffer);
		p.kernels.clear();
		p.names.clear();
		usleep(static_cast<useconds_t>(options.number("pause_us", 0)));
	}
	account.also("paths", paths_json(all));
	return 0;
}

int main(int argc, char **argv)
{
	std::string mode = argc > 1 ? argv[1] : "";
	if (mode != "launch" && mode != "reload") {
		fprintf(stderr, "usage: ze_paths launch|reload module=FILE [key=value...]\n");
		return 2;
	}
	Options options(argc, argv);
	/* The first one only waits, so that all are alike. */
	long processes = options.number("processes", 1);
	bool child = processes == 1;
	for (long i = 0; i < processes && !child; i++) {
		pid_t pid = fork();
		if (pid < 0)
			die("fork", 0);
		child = pid == 0;
	}
	int failed = 0;
	if (!child) {
		for (int status; wait(&status) > 0;)
			failed += status != 0;
		return failed;
	}
	failed = mode == "launch" ? launch(options) : reload(options);
	account.print(mode.c_str());
	return failed;
}
