/*
 * Works with the AIU runtime: aiu_work MODE [OPTIONS], options in aiu_work.h.
 *
 *   plain      launches and copies; no activity records.
 *   profiled   the same with activity records, walked as Kineto does.
 *   timed      profiled if flex timing is switched on, else plain.
 *   paths      one kernel from three call paths, 1 : 2 : 3.
 *   every      each exported function once for each of N launches.
 *   throw, longjmp, backtrace, cancel
 *              every function, left by such a hook inside it.
 *
 * Prints "pid N rank R", then its account as JSON. The account is the same in
 * every run with equal arguments (but --late with several threads), so that a
 * run under a profiler can be compared with one without.
 */
#include "aiu_work.h"

#include <sys/wait.h>
#include <thread>

Counts calls, launches, records;

std::string Counts::json()
{
	std::lock_guard<std::mutex> guard(lock_);
	std::string out = "{";
	for (auto &one : counts_)
		out += (out.size() > 1 ? ",\"" : "\"") + one.first + "\":" +
		       std::to_string(one.second);
	return out + "}";
}

static const char *const KERNELS[] = {"sdsc_fused_mm_1/bundle.mlir", "sdsc_fused_add_t_0",
				      "spyre_kernel_v1_softmax_mfrggzdf"};
static flex::CompositeAddress device_memory;
static char host_memory[1 << 16];

NOINLINE void launch_kernel(Stream &stream, const std::string &kernel)
{
	flex::ComputeParams params;
	params.kernel_name = kernel;
	params.device_address = &device_memory;
	stream->launchOperationCompute(&params);
	calls.add("launchOperationCompute");
	launches.add(kernel);
}

NOINLINE static void copy(Stream &stream, bool to_device, unsigned long bytes)
{
	flex::DmaParams params(host_memory, bytes, to_device, &device_memory);
	if (to_device)
		stream->launchOperationH2D(&params);
	else
		stream->launchOperationD2H(&params);
	calls.add(to_device ? "launchOperationH2D" : "launchOperationD2H");
}

NOINLINE static void synchronize(Stream &stream)
{
	stream->synchronize();
	calls.add("synchronize");
}

NOINLINE static void one_step(Stream &stream, unsigned long i)
{
	if (i % 16 == 0)
		copy(stream, true, 4096 * (1 + i % 8));
	launch_kernel(stream, KERNELS[i % 3]);
	if (i % 16 == 15) {
		copy(stream, false, 8192);
		synchronize(stream);
	}
}

/* The same kernel, from three places. */
NOINLINE static void path_direct(Stream &stream) { launch_kernel(stream, "shared_kernel"); }

NOINLINE static void layer_two(Stream &stream)
{
	launch_kernel(stream, "shared_kernel");
	burn(10);
}

NOINLINE static void layer_one(Stream &stream)
{
	layer_two(stream);
	burn(10);
}

NOINLINE static void path_layers(Stream &stream)
{
	layer_one(stream);
	burn(10);
}

static int body_node(void *stream)
{
	launch_kernel(*static_cast<Stream *>(stream), "shared_kernel");
	return 0;
}

static int body_super(void *stream)
{
	calls.add("aiuNodeCompute");
	return aiuNodeCompute("node", body_node, stream);
}

static int body_graph(void *stream)
{
	calls.add("aiuSuperNodeExecution");
	return aiuSuperNodeExecution("super", body_super, stream);
}

NOINLINE static void path_graph(Stream &stream)
{
	calls.add("aiuGraphExecution");
	aiuGraphExecution("graph", body_graph, &stream);
	burn(10);
}

NOINLINE static void from_paths(Stream &stream, unsigned long i)
{
	if (i % 6 == 0)
		path_direct(stream);
	else if (i % 6 < 3)
		path_layers(stream);
	else
		path_graph(stream);
	if (i % 16 == 15)
		synchronize(stream);
}

NOINLINE void every_function(Stream &stream)
{
	uint64_t address = 0, id = stream->id();
	aiu_control_block blocks[2] = {{"cb_one", 4096, 0}, {"cb_two", 0, 2048}};
	flex::P2PParams peer;
	peer.size = 65536;
	peer.group = "AllReduce_all_reduce_1";
	flex::FillParams fill;
	fill.size = 16384;
	flex::HostCallbackParams callback;
	launch_kernel(stream, "every_kernel");
	copy(stream, true, 4096);
	copy(stream, false, 4096);
#define ONE(name, call)                                                                            \
	calls.add(#name);                                                                          \
	call;
	ONE(aiuMalloc, aiuMalloc(&address, 1 << 20, 0))
	ONE(aiuResizeTensorAllocation, aiuResizeTensorAllocation(&address, 2 << 20))
	ONE(aiuLaunchControlBlocks, aiuLaunchControlBlocks(id, blocks, 2))
	ONE(aiuLaunchComputeStream, aiuLaunchComputeStream(id, blocks, 1))
	ONE(aiuDataTransferHtoD, aiuDataTransferHtoD(id, address, host_memory, 1024))
	ONE(aiuDataTransferDtoH, aiuDataTransferDtoH(id, host_memory, address, 1024))
	ONE(launchOperationFill, stream->launchOperationFill(&fill))
	ONE(launchOperationP2PRdmaSend, stream->launchOperationP2PRdmaSend(&peer))
	ONE(launchOperationP2PRdmaWait, stream->launchOperationP2PRdmaWait(&peer))
	ONE(launchOperationHostCallback, stream->launchOperationHostCallback(&callback))
	ONE(aiuLaunchSuperNode, aiuLaunchSuperNode("super", body_node, &stream))
	ONE(aiuGraphExecution, aiuGraphExecution("graph", body_graph, &stream))
	ONE(aiuRDMABarrier1, aiuRDMABarrier1())
	ONE(aiuRDMABarrier2, aiuRDMABarrier2())
	ONE(aiuRDMABarrier3, aiuRDMABarrier3())
#define PLAIN(name, cbid) ONE(name, name(1, 0))
	AIU_PLAIN_CALLS(PLAIN)
	ONE(aiuScheduleWait, aiuScheduleWait(id))
	ONE(query, stream->query())
	synchronize(stream);
}

NOINLINE static void work(const Options &options, Stream stream, unsigned thread)
{
	for (unsigned long i = 0; i < options.launches; i++) {
		if (options.late && i == options.late && thread == 0) {
			/* Nothing in flight: what is recorded is the same in every run. */
			synchronize(stream);
			activities_load(options);
			activities_enable(true);
		}
		if (options.mode == "paths" || options.paths)
			from_paths(stream, i);
		else if (options.mode == "every")
			every_function(stream);
		else
			one_step(stream, i);
		if (options.pause_us)
			usleep(options.pause_us);
	}
	synchronize(stream);
}

static void run_threads(const Options &options, flex::RuntimeContext &context)
{
	std::vector<Stream> streams;
	for (unsigned i = 0; i < options.streams; i++)
		streams.push_back(context.createStream(flex::RuntimeStreamMode::StrictOrdering,
						       flex::RuntimeEntry::toPriority(int(i))));
	std::vector<std::thread> threads;
	for (unsigned i = 1; i < options.threads; i++)
		threads.emplace_back(work, std::cref(options), streams[i % streams.size()], i);
	work(options, streams[0], 0);
	for (auto &thread : threads)
		thread.join();
}

/* As flex reads its switches. */
static bool switched_on(const char *name)
{
	const char *value = getenv(name);
	return value && std::string(value) == "1";
}

static int run_one(const Options &options, int rank)
{
	std::shared_ptr<flex::RuntimeContext> context;
	Account account;
	unsigned long left = 0;
	bool timed = options.mode == "timed";
	bool profiled = options.mode == "profiled" || (timed && switched_on("ENABLE_FLEX_TIMING"));
	printf("pid %d rank %d\n", getpid(), rank);
	fflush(stdout);
	if (options.wait && getchar() == EOF)
		return 4;
	if (options.early)
		activities_load(options);
	if (flex::initializeRuntime(&context, rank) != 0)
		return 3;
	auto directive = flex::AllocationDirective(flex::PlacementPolicy::Bind, {0}, {},
						   flex::MemoryType::Tensor);
	if (profiled && !options.late) {
		activities_load(options);
		activities_enable(true);
	}
	device_memory = context->getAllocator()->allocate(1 << 22, directive);
	if (options.mode == "plain" || options.mode == "paths" || options.mode == "every" || timed ||
	    profiled)
		run_threads(options, *context);
	else
		left = leave_every_function(options, *std::make_unique<Stream>(context->getDefaultStream()));
	context->getAllocator()->deallocate(device_memory);
	if (profiled)
		account = activities_finish();
	vaiu_flush_truth();
	printf("{\"mode\":\"%s\",\"rank\":%d,\"launches\":%s,\"calls\":%s,\"records\":%s,"
	       "\"dropped\":%lu,\"errors\":%lu,\"left\":%lu}\n",
	       options.mode.c_str(), rank, launches.json().c_str(), calls.json().c_str(),
	       records.json().c_str(), account.dropped, account.errors, left);
	return 0;
}

/* Starts itself once for each rank, as a launcher of distributed jobs does. */
static int run_ranks(const Options &options, char **argv)
{
	int failed = 0;
	std::vector<pid_t> ranks;
	char world[] = "/tmp/vaiu-world-XXXXXX";
	int file = mkstemp(world);
	if (file < 0)
		return 3;
	close(file);
	setenv("VAIU_WORLD", world, 1);
	setenv("WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
	setenv("LOCAL_WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
	for (unsigned rank = 0; rank < options.ranks; rank++) {
		pid_t pid = fork();
		if (pid == 0) {
			setenv("RANK", std::to_string(rank).c_str(), 1);
			setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
			execv("/proc/self/exe", argv);
			_exit(127);
		}
		ranks.push_back(pid);
	}
	for (pid_t pid : ranks) {
		int status = 0;
		failed += pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0;
	}
	unlink(world);
	printf("{\"mode\":\"launcher\",\"ranks\":%u,\"failed\":%d}\n", options.ranks, failed);
	return failed;
}

static bool number(const std::string &option, const char *name, const char *value, unsigned &to)
{
	if (option != name || !value)
		return false;
	to = unsigned(strtoul(value, nullptr, 0));
	return true;
}

static Options parse(int argc, char **argv)
{
	Options o;
	unsigned count = unsigned(o.launches);
	if (argc > 1)
		o.mode = argv[1];
	for (int i = 2; i < argc; i++) {
		std::string option = argv[i];
		const char *value = argv[i + 1];
		if (option == "--wait")
			o.wait = true;
		else if (option == "--early")
			o.early = true;
		else if (option == "--paths")
			o.paths = true;
		else if (option == "--library" && value)
			o.library = argv[++i];
		else if (option == "--dump" && value)
			o.dump = argv[++i];
		else if (number(option, "--launches", value, count) ||
			 number(option, "--threads", value, o.threads) ||
			 number(option, "--streams", value, o.streams) ||
			 number(option, "--ranks", value, o.ranks) ||
			 number(option, "--late", value, o.late) ||
			 number(option, "--buffer", value, o.buffer) ||
			 number(option, "--buffers", value, o.buffers) ||
			 number(option, "--pause-us", value, o.pause_us))
			i++;
		else
			o.mode = "";
	}
	o.launches = count;
	if (!o.threads || !o.streams)
		o.mode = "";
	return o;
}

int main(int argc, char **argv)
{
	Options options = parse(argc, argv);
	const char *rank = getenv("RANK");
	if (options.mode.empty()) {
		fprintf(stderr, "usage: aiu_work MODE [OPTIONS]\n");
		return 2;
	}
	if (options.ranks > 1 && !rank)
		return run_ranks(options, argv);
	return run_one(options, rank ? atoi(rank) : 0);
}
