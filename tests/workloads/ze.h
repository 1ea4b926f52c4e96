/*
 * Shared by the Level Zero workloads: set-up, checked calls and the account of
 * what was launched, which the program prints as one line of JSON.
 *
 * Built with -DDIRECT the program has no loader: it opens the driver itself and
 * calls through its tables, as programs do that carry the loader inside.
 */
#ifndef ZE_H
#define ZE_H

#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

/* Newer than the headers; fetched from the driver. */
struct GroupSize {
	uint32_t x, y, z;
};
struct CounterEventDesc {
	uint32_t stype;
	const void *pNext;
	uint32_t flags, signal, wait;
};
typedef ze_result_t (*LaunchWithArguments)(ze_command_list_handle_t, ze_kernel_handle_t,
					   ze_group_count_t, GroupSize, void **, const void *,
					   ze_event_handle_t, uint32_t, ze_event_handle_t *);
typedef ze_result_t (*LaunchWithParameters)(ze_command_list_handle_t, ze_kernel_handle_t,
					    const ze_group_count_t *, const void *,
					    ze_event_handle_t, uint32_t, ze_event_handle_t *);
typedef ze_result_t (*AppendLists)(ze_command_list_handle_t, uint32_t, ze_command_list_handle_t *,
				   ze_event_handle_t, uint32_t, ze_event_handle_t *);
typedef ze_result_t (*ListSynchronize)(ze_command_list_handle_t, uint64_t);
typedef ze_result_t (*CounterEventCreate)(ze_context_handle_t, ze_device_handle_t,
					  const CounterEventDesc *, ze_event_handle_t *);
typedef ze_result_t (*CopyWithParameters)(ze_command_list_handle_t, void *, const void *, size_t,
					  const void *, ze_event_handle_t, uint32_t,
					  ze_event_handle_t *);
typedef ze_result_t (*BaseAddress)(ze_kernel_handle_t, uint64_t *);

[[noreturn]] inline void die(const char *what, long code)
{
	fprintf(stderr, "ze_work: %s: 0x%lx\n", what, code);
	_exit(1);
}

inline void check(ze_result_t result, const char *what)
{
	if (result != ZE_RESULT_SUCCESS)
		die(what, result);
}

#ifdef DIRECT
struct Direct {
	ze_global_dditable_t Global;
	ze_driver_dditable_t Driver;
	ze_device_dditable_t Device;
	ze_context_dditable_t Context;
	ze_command_queue_dditable_t CommandQueue;
	ze_command_list_dditable_t CommandList;
	ze_fence_dditable_t Fence;
	ze_event_pool_dditable_t EventPool;
	ze_event_dditable_t Event;
	ze_module_dditable_t Module;
	ze_kernel_dditable_t Kernel;
	ze_mem_dditable_t Mem;
};
inline Direct direct;

inline void open_direct()
{
	const char *path = getenv("ZE_ENABLE_ALT_DRIVERS");
	void *library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
	if (library == nullptr)
		die("no driver in ZE_ENABLE_ALT_DRIVERS", 0);
	typedef ze_result_t (*Fill)(ze_api_version_t, void *);
	const struct {
		const char *name;
		void *table;
	} tables[] = {
		{"zeGetGlobalProcAddrTable", &direct.Global},
		{"zeGetDriverProcAddrTable", &direct.Driver},
		{"zeGetDeviceProcAddrTable", &direct.Device},
		{"zeGetContextProcAddrTable", &direct.Context},
		{"zeGetCommandQueueProcAddrTable", &direct.CommandQueue},
		{"zeGetCommandListProcAddrTable", &direct.CommandList},
		{"zeGetFenceProcAddrTable", &direct.Fence},
		{"zeGetEventPoolProcAddrTable", &direct.EventPool},
		{"zeGetEventProcAddrTable", &direct.Event},
		{"zeGetModuleProcAddrTable", &direct.Module},
		{"zeGetKernelProcAddrTable", &direct.Kernel},
		{"zeGetMemProcAddrTable", &direct.Mem},
	};
	for (auto &t : tables) {
		auto fill = reinterpret_cast<Fill>(dlsym(library, t.name));
		if (fill == nullptr)
			die(t.name, 0);
		check(fill(ZE_API_VERSION_CURRENT, t.table), t.name);
	}
}
#define ZE(group, function) direct.group.pfn##function
#define ZE_INIT direct.Global.pfnInit
#else
inline void open_direct() {}
#define ZE(group, function) ze##group##function
#define ZE_INIT zeInit
#endif

/* Calls a function that must succeed. */
#define MUST(group, function, ...) check(ZE(group, function)(__VA_ARGS__), #group #function)

/* The options `key=value` behind the mode. */
struct Options {
	std::map<std::string, std::string> all;

	Options(int argc, char **argv)
	{
		for (int i = 2; i < argc; i++) {
			const char *equals = strchr(argv[i], '=');
			if (equals == nullptr)
				die(argv[i], 0);
			all[std::string(argv[i], equals - argv[i])] = equals + 1;
		}
	}
	std::string text(const char *key, const char *otherwise = "") const
	{
		auto found = all.find(key);
		return found == all.end() ? otherwise : found->second;
	}
	long number(const char *key, long otherwise) const
	{
		auto found = all.find(key);
		return found == all.end() ? otherwise : atol(found->second.c_str());
	}
};

/* Runs what is named in a list with commas; `run` returns false for an unknown name. */
template <typename F> void for_each_shape(const std::string &list, F run)
{
	for (size_t begin = 0; begin <= list.size();) {
		size_t end = std::min(list.find(',', begin), list.size());
		if (!run(list.substr(begin, end - begin)))
			die("no such shape", 0);
		begin = end + 1;
	}
}

/* What the program did, counted by itself. */
struct Account {
	std::mutex lock;
	std::map<std::string, uint64_t> launches;
	std::map<std::string, uint64_t> calls;
	std::map<uint32_t, uint64_t> threads;
	std::vector<std::pair<std::string, std::string>> more;

	void add(const std::string &kernel, uint64_t n)
	{
		std::lock_guard<std::mutex> guard(lock);
		launches[kernel] += n;
		threads[static_cast<uint32_t>(syscall(SYS_gettid))] += n;
	}
	void called(const char *function, uint64_t n = 1)
	{
		std::lock_guard<std::mutex> guard(lock);
		calls[function] += n;
	}
	/* Another member of the JSON object, its value as JSON. */
	void also(const char *key, std::string json)
	{
		std::lock_guard<std::mutex> guard(lock);
		more.push_back({key, std::move(json)});
	}
	/* One write, so that lines of several processes do not mix. */
	void print(const char *mode)
	{
		std::string out = "{\"mode\":\"" + std::string(mode) + "\",\"pid\":";
		out += std::to_string(getpid());
		out += ",\"launches\":" + object(launches) + ",\"calls\":" + object(calls);
		out += ",\"threads\":{";
		for (auto &[tid, n] : threads)
			out += (out.back() == '{' ? "\"" : ",\"") + std::to_string(tid) +
			       "\":" + std::to_string(n);
		out += "}";
		for (auto &[key, json] : more)
			out += ",\"" + key + "\":" + json;
		out += "}\n";
		if (write(1, out.data(), out.size()) != static_cast<ssize_t>(out.size()))
			die("stdout", 0);
	}

      private:
	static std::string object(const std::map<std::string, uint64_t> &map)
	{
		std::string out = "{";
		for (auto &[key, n] : map)
			out += (out == "{" ? "\"" : ",\"") + key + "\":" + std::to_string(n);
		return out + "}";
	}
};

inline uint64_t now_ns()
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

inline double seconds_now()
{
	return static_cast<double>(now_ns()) * 1e-9;
}

inline std::vector<uint8_t> read_file(const std::string &path)
{
	std::vector<uint8_t> bytes;
	FILE *file = fopen(path.c_str(), "rb");
	if (file == nullptr)
		die(path.c_str(), 0);
	uint8_t piece[65536];
	for (size_t n; (n = fread(piece, 1, sizeof(piece), file)) > 0;)
		bytes.insert(bytes.end(), piece, piece + n);
	fclose(file);
	return bytes;
}

/* A driver, a device, a module and its kernels. */
struct Program {
	ze_driver_handle_t driver = nullptr;
	std::vector<ze_device_handle_t> devices;
	ze_device_handle_t device = nullptr;
	ze_context_handle_t context = nullptr;
	ze_module_handle_t module = nullptr;
	std::vector<std::string> names;
	std::vector<ze_kernel_handle_t> kernels;
	void *buffer = nullptr;

	explicit Program(const Options &options)
	{
		open_direct();
		check(ZE_INIT(0), "zeInit");
		static bool asked = false;
		if (options.number("go", 0) != 0 && !asked) {
			asked = true;
			/* The driver is there: who records may look at it first. */
			printf("loaded %d\n", getpid());
			fflush(stdout);
			char line[8];
			if (fgets(line, sizeof line, stdin) == nullptr)
				die("no line on stdin", 0);
		}
		uint32_t count = 1;
		MUST(Driver, Get, &count, &driver);
		ze_context_desc_t desc = {ZE_STRUCTURE_TYPE_CONTEXT_DESC, nullptr, 0};
		MUST(Context, Create, driver, &desc, &context);
		count = 0;
		MUST(Device, Get, driver, &count, nullptr);
		devices.resize(count);
		MUST(Device, Get, driver, &count, devices.data());
		device = devices[options.number("device", 0)];
		long sub = options.number("sub", -1);
		if (sub >= 0) {
			count = static_cast<uint32_t>(sub) + 1;
			std::vector<ze_device_handle_t> children(count);
			MUST(Device, GetSubDevices, device, &count, children.data());
			device = children[sub];
		}
		load(options.text("module"), options.number("spirv", 0) != 0);
	}

	void load(const std::string &path, bool spirv)
	{
		auto bytes = read_file(path);
		ze_module_desc_t desc = {};
		desc.stype = ZE_STRUCTURE_TYPE_MODULE_DESC;
		desc.format = spirv ? ZE_MODULE_FORMAT_IL_SPIRV : ZE_MODULE_FORMAT_NATIVE;
		desc.inputSize = bytes.size();
		desc.pInputModule = bytes.data();
		MUST(Module, Create, context, device, &desc, &module, nullptr);
		uint32_t count = 0;
		MUST(Module, GetKernelNames, module, &count, nullptr);
		std::vector<const char *> all(count);
		MUST(Module, GetKernelNames, module, &count, all.data());
		buffer = allocate(1 << 16);
		for (const char *name : all) {
			/* A real module has a helper kernel of the compiler. */
			if (strncmp(name, "Intel_Symbol_Table", 18) == 0)
				continue;
			names.push_back(name);
			kernels.push_back(kernel(name));
		}
		if (kernels.empty())
			die("no kernels", 0);
	}

	/* All kernels of the tests take (global float *, global float *, int). */
	ze_kernel_handle_t kernel(const std::string &name)
	{
		ze_kernel_desc_t desc = {ZE_STRUCTURE_TYPE_KERNEL_DESC, nullptr, 0, name.c_str()};
		ze_kernel_handle_t out;
		MUST(Kernel, Create, module, &desc, &out);
		MUST(Kernel, SetGroupSize, out, 16, 1, 1);
		int n = 64;
		MUST(Kernel, SetArgumentValue, out, 0, sizeof(buffer), &buffer);
		MUST(Kernel, SetArgumentValue, out, 1, sizeof(buffer), &buffer);
		MUST(Kernel, SetArgumentValue, out, 2, sizeof(n), &n);
		return out;
	}

	void *allocate(size_t size)
	{
		ze_device_mem_alloc_desc_t device_desc = {};
		device_desc.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC;
		ze_host_mem_alloc_desc_t host_desc = {};
		host_desc.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC;
		void *out = nullptr;
		MUST(Mem, AllocShared, context, &device_desc, &host_desc, size, 64, device, &out);
		return out;
	}

	ze_command_queue_handle_t queue(uint32_t index = 0)
	{
		ze_command_queue_desc_t desc = {};
		desc.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
		desc.index = index;
		ze_command_queue_handle_t out;
		MUST(CommandQueue, Create, context, device, &desc, &out);
		return out;
	}

	/* flags: 8 is in order. */
	ze_command_list_handle_t list(uint32_t flags = 0)
	{
		ze_command_list_desc_t desc = {};
		desc.stype = ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC;
		desc.flags = flags;
		ze_command_list_handle_t out;
		MUST(CommandList, Create, context, device, &desc, &out);
		return out;
	}

	/* flags: 2 is in order. */
	ze_command_list_handle_t immediate(uint32_t flags = 0, bool synchronous = false)
	{
		ze_command_queue_desc_t desc = {};
		desc.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
		desc.flags = flags;
		desc.mode = synchronous ? ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS
					: ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
		ze_command_list_handle_t out;
		MUST(CommandList, CreateImmediate, context, device, &desc, &out);
		return out;
	}

	ze_event_pool_handle_t pool(uint32_t count)
	{
		ze_event_pool_desc_t desc = {};
		desc.stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC;
		desc.flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP;
		desc.count = count;
		ze_event_pool_handle_t out;
		MUST(EventPool, Create, context, &desc, 1, &device, &out);
		return out;
	}

	ze_event_handle_t event(ze_event_pool_handle_t pool, uint32_t index)
	{
		ze_event_desc_t desc = {};
		desc.stype = ZE_STRUCTURE_TYPE_EVENT_DESC;
		desc.index = index;
		desc.signal = desc.wait = ZE_EVENT_SCOPE_FLAG_HOST;
		ze_event_handle_t out;
		MUST(Event, Create, pool, &desc, &out);
		return out;
	}

	/* A newer function; null where the driver has none. */
	template <typename F> F extension(const char *name)
	{
		void *out = nullptr;
		if (ZE(Driver, GetExtensionFunctionAddress)(driver, name, &out) != ZE_RESULT_SUCCESS)
			return nullptr;
		return reinterpret_cast<F>(out);
	}
};

/* A function of the virtual driver that no Level Zero program knows. */
template <typename F> F hook_function(const char *name)
{
	const char *path = getenv("ZE_ENABLE_ALT_DRIVERS");
	void *library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	void *out = library == nullptr ? nullptr : dlsym(library, name);
	if (out == nullptr)
		die(name, 0);
	return reinterpret_cast<F>(out);
}

#endif
