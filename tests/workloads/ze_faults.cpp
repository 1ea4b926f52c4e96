/*
 * Passes bad pointers and handles to every kind of call, between good ones:
 * `ze_faults module=FILE threads=N seconds=S`. With VZE_CHECKED, the virtual driver
 * checks its arguments: it must refuse each bad call, and each good one must
 * succeed. Then the program exits with 0. Every thread launches from a
 * call path of its own.
 *
 * Some good pointers are to pages that are not resident when the call begins.
 */
#include "ze.h"

#include "ze_walk.h"

#include <atomic>
#include <functional>
#include <thread>

#include <sys/mman.h>

static Account account;

static constexpr size_t PAGE = 4096;

/* Addresses that cannot be read, or not to the end of what they should hold. */
static std::vector<void *> bad_addresses()
{
	auto *pages = static_cast<char *>(mmap(nullptr, 2 * PAGE, PROT_READ | PROT_WRITE,
					       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	if (pages == MAP_FAILED)
		die("mmap", 0);
	/* Readable, then forbidden. */
	memset(pages, 0x5a, PAGE);
	mprotect(pages + PAGE, PAGE, PROT_NONE);
	return {
		nullptr,
		reinterpret_cast<void *>(8),
		pages + PAGE,
		pages + PAGE - 3,
		reinterpret_cast<void *>(PAGE),
		reinterpret_cast<void *>(0x00007ffffffff000),
		reinterpret_cast<void *>(0xdead000000000000),
		reinterpret_cast<void *>(0xffff888000000000),
		reinterpret_cast<void *>(~0UL - 2),
	};
}

/* A file's page that this process has not touched, holding `text`. */
static char *cold(const std::string &text)
{
	char name[] = "/tmp/ze_faults_XXXXXX";
	int fd = mkstemp(name);
	if (fd < 0 || write(fd, text.c_str(), text.size() + 1) < 0)
		die(name, fd);
	unlink(name);
	void *page = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		die("mmap", 0);
	return static_cast<char *>(page);
}

/* Makes the page absent again; the next touch reads the file. */
static void chill(void *page)
{
	madvise(page, PAGE, MADV_DONTNEED);
}

/* A call that must be refused. */
struct Bad {
	const char *what;
	std::function<ze_result_t(void *)> call;
};

#define BAD(what, expression) {what, [=](void *bad) -> ze_result_t { (void)bad; return expression; }}
#define AS(type) static_cast<type>(bad)
#define HANDLE(type) reinterpret_cast<type>(bad)

struct Tools {
	Program *p;
	ze_command_list_handle_t list, closed;
	ze_command_queue_handle_t queue;
	ze_event_pool_handle_t pool;
};

static std::vector<Bad> bad_calls(const Tools &t)
{
	Program &p = *t.p;
	auto list = t.list;
	auto queue = t.queue;
	auto pool = t.pool;
	auto context = p.context;
	auto device = p.device;
	auto driver = p.driver;
	auto module = p.module;
	auto kernel = p.kernels[0];
	auto buffer = p.buffer;
	static ze_group_count_t groups = {1, 1, 1};
	static thread_local ze_kernel_desc_t kernel_desc = {};
	static thread_local ze_module_desc_t module_desc = {};
	static thread_local ze_event_handle_t events[1];
	static thread_local ze_command_list_handle_t lists[1];
	static ze_event_desc_t event_desc = {};
	static ze_device_mem_alloc_desc_t device_mem = {};
	return {
		BAD("extension name", ZE(Driver, GetExtensionFunctionAddress)(
					      driver, AS(const char *), AS(void **))),
		BAD("device", ZE(Device, GetProperties)(HANDLE(ze_device_handle_t), nullptr)),
		BAD("device properties",
		    ZE(Device, GetProperties)(device, AS(ze_device_properties_t *))),
		BAD("timestamps", ZE(Device, GetGlobalTimestamps)(device, AS(uint64_t *),
								  AS(uint64_t *))),
		BAD("module description",
		    ZE(Module, Create)(context, device, AS(ze_module_desc_t *), nullptr, nullptr)),
		BAD("module bytes",
		    (module_desc.format = ZE_MODULE_FORMAT_NATIVE, module_desc.inputSize = PAGE,
		     module_desc.pInputModule = AS(uint8_t *),
		     ZE(Module, Create)(context, device, &module_desc,
					reinterpret_cast<ze_module_handle_t *>(&events), nullptr))),
		BAD("module context", ZE(Module, Create)(HANDLE(ze_context_handle_t), device,
							 nullptr, nullptr, nullptr)),
		BAD("kernel description",
		    ZE(Kernel, Create)(module, AS(ze_kernel_desc_t *), nullptr)),
		BAD("kernel name",
		    (kernel_desc.pKernelName = AS(char *),
		     ZE(Kernel, Create)(module, &kernel_desc,
					reinterpret_cast<ze_kernel_handle_t *>(&events)))),
		BAD("kernel result",
		    (kernel_desc.pKernelName = "saxpy",
		     ZE(Kernel, Create)(module, &kernel_desc, AS(ze_kernel_handle_t *)))),
		BAD("kernel", ZE(Kernel, SetGroupSize)(HANDLE(ze_kernel_handle_t), 1, 1, 1)),
		BAD("launched list",
		    ZE(CommandList, AppendLaunchKernel)(HANDLE(ze_command_list_handle_t), kernel,
							&groups, nullptr, 0, nullptr)),
		BAD("launched kernel",
		    ZE(CommandList, AppendLaunchKernel)(list, HANDLE(ze_kernel_handle_t), &groups,
							nullptr, 0, nullptr)),
		BAD("group counts",
		    ZE(CommandList, AppendLaunchKernel)(list, kernel, AS(ze_group_count_t *),
							nullptr, 0, nullptr)),
		BAD("wait list",
		    ZE(CommandList, AppendLaunchKernel)(list, kernel, &groups, nullptr, 1,
							AS(ze_event_handle_t *))),
		BAD("waited event",
		    (events[0] = HANDLE(ze_event_handle_t),
		     ZE(CommandList, AppendLaunchKernel)(list, kernel, &groups, nullptr, 1,
							 events))),
		BAD("fill pattern", ZE(CommandList, AppendMemoryFill)(list, buffer, bad, 16, 64,
								      nullptr, 0, nullptr)),
		BAD("copying list",
		    ZE(CommandList, AppendMemoryCopy)(HANDLE(ze_command_list_handle_t), buffer,
						      buffer, 64, nullptr, 0, nullptr)),
		BAD("queue", ZE(CommandQueue, Synchronize)(HANDLE(ze_command_queue_handle_t), 0)),
		BAD("lists", ZE(CommandQueue, ExecuteCommandLists)(
				     queue, 1, AS(ze_command_list_handle_t *), nullptr)),
		BAD("list of a queue",
		    (lists[0] = HANDLE(ze_command_list_handle_t),
		     ZE(CommandQueue, ExecuteCommandLists)(queue, 1, lists, nullptr))),
		BAD("event description",
		    ZE(Event, Create)(pool, AS(ze_event_desc_t *), nullptr)),
		BAD("event result",
		    ZE(Event, Create)(pool, &event_desc, AS(ze_event_handle_t *))),
		BAD("event", ZE(Event, HostSynchronize)(HANDLE(ze_event_handle_t), 0)),
		BAD("allocation result", ZE(Mem, AllocDevice)(context, &device_mem, 64, 64, device,
							      AS(void **))),
		BAD("freed memory", ZE(Mem, Free)(context, bad)),
	};
}

/* Good calls with cold pages, and a copy from where nothing is: a device would
 * fault, the program would not. */
static NOINLINE uint64_t good_calls(const Tools &t, ze_kernel_handle_t kernel, char *name,
				    ze_group_count_t *groups, void *bad)
{
	chill(name);
	ze_kernel_desc_t desc = {ZE_STRUCTURE_TYPE_KERNEL_DESC, nullptr, 0, name};
	ze_kernel_handle_t created;
	MUST(Kernel, Create, t.p->module, &desc, &created);
	chill(groups);
	MUST(CommandList, AppendLaunchKernel, t.list, kernel, groups, nullptr, 0, nullptr);
	if (bad != nullptr)
		MUST(CommandList, AppendMemoryCopy, t.list, t.p->buffer, bad, 64, nullptr, 0,
		     nullptr);
	MUST(CommandList, AppendLaunchKernel, t.list, created, groups, nullptr, 0, nullptr);
	MUST(Kernel, Destroy, created);
	return 2;
}

static std::atomic<uint64_t> refused{0};

static void work(Program &p, int path, double end)
{
	Tools t = {&p, p.immediate(2), nullptr, p.queue(), p.pool(1)};
	auto bad = bad_addresses();
	auto calls = bad_calls(t);
	char *name = cold(p.names[0]);
	ze_group_count_t count = {static_cast<uint32_t>(path + 1), 1, 1};
	auto *groups = reinterpret_cast<ze_group_count_t *>(
		cold(std::string(reinterpret_cast<char *>(&count), sizeof(count))));
	auto own = p.kernel(p.names[0]);
	uint64_t launched = 0, wrong = 0;
	walk_path(path, [&](int) {
		do {
			for (void *address : bad)
				for (const Bad &call : calls)
					wrong += call.call(address) == ZE_RESULT_SUCCESS;
			refused += bad.size() * calls.size();
			launched += good_calls(t, own, name, groups,
					       bad[launched / 2 % bad.size()]);
		} while (seconds_now() < end);
	});
	if (wrong > 0)
		die("bad calls that succeeded", static_cast<long>(wrong));
	MUST(CommandList, Destroy, t.list);
	MUST(CommandQueue, Destroy, t.queue);
	account.add(p.names[0], launched);
}

int main(int argc, char **argv)
{
	setenv("VZE_CHECKED", "1", 1);
	Options options(argc + 1, argv - 1);
	Program p(options);
	long n = options.number("threads", 8 * sysconf(_SC_NPROCESSORS_ONLN));
	double end = seconds_now() + atof(options.text("seconds", "0").c_str());
	std::vector<std::thread> all;
	for (long i = 0; i < n; i++)
		all.emplace_back([&p, i, end] { work(p, static_cast<int>(i) % WALK_PATHS, end); });
	for (auto &thread : all)
		thread.join();
	account.also("refused", std::to_string(refused));
	account.print("faults");
	return 0;
}
