/*
 * The loop of a usual Level Zero program, as samples have it: `ze_gemm gemm
 * module=FILE [rounds=N] [events=all|kernel|none] [ask=1] [pause=MS]`.
 *
 * Each round makes its own memory, events, queue and list; copies two matrices to
 * the device, waits, launches a kernel, waits, and copies a matrix back. The
 * program reads the timestamps of the kernel, of all commands, or of none. With
 * ask=1 it asks for the properties of its kernels, with pause=MS it waits so long
 * before it executes the list. It prints its account, with the
 * ticks of the kernels.
 */
#include "ze.h"

#include <unistd.h>

static Account account;

static void *on_device(Program &p, size_t size)
{
	ze_device_mem_alloc_desc_t desc = {};
	desc.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC;
	void *out = nullptr;
	MUST(Mem, AllocDevice, p.context, &desc, size, 64, p.device, &out);
	return out;
}

static std::string ticks(ze_event_handle_t event)
{
	ze_kernel_timestamp_result_t t = {};
	MUST(Event, QueryKernelTimestamp, event, &t);
	return "[" + std::to_string(t.global.kernelStart) + "," +
	       std::to_string(t.global.kernelEnd) + "]";
}

static void ask(Program &p)
{
	std::string all;
	for (size_t k = 0; k < p.kernels.size(); k++) {
		ze_kernel_properties_t of = {};
		of.stype = ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES;
		MUST(Kernel, GetProperties, p.kernels[k], &of);
		all += (k ? ",\"" : "\"") + p.names[k] + "\":[";
		for (auto value : {of.maxSubgroupSize, of.numKernelArgs, of.localMemSize,
				   of.privateMemSize, of.spillMemSize})
			all += (all.back() == '[' ? "" : ",") + std::to_string(value);
		all += "]";
	}
	account.also("properties", "{" + all + "}");
}

int main(int argc, char **argv)
{
	const Options options(argc, argv);
	const std::string events = options.text("events", "kernel");
	const size_t size = 1 << 16;
	Program p(options);
	/* By which ticks become nanoseconds. */
	ze_device_properties_t device = {};
	device.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
	MUST(Device, GetProperties, p.device, &device);
	std::vector<uint8_t> a(size, 1), b(size, 2), c(size, 3);
	if (options.number("ask", 0) != 0)
		ask(p);
	std::string all;
	for (long round = 0; round < options.number("rounds", 4); round++) {
		void *memory[3];
		for (auto &one : memory)
			one = on_device(p, size);
		auto pool = p.pool(6);
		std::vector<ze_event_handle_t> signal(6, nullptr);
		for (uint32_t i = 0; i < 6; i++)
			if (events == "all" || (events == "kernel" && i == 3))
				signal[i] = p.event(pool, i);
		auto kernel = p.kernels[0];
		MUST(Kernel, SetGroupSize, kernel, 32, 2, 1);
		MUST(Kernel, SetArgumentValue, kernel, 0, sizeof(memory[0]), &memory[0]);
		MUST(Kernel, SetArgumentValue, kernel, 1, sizeof(memory[1]), &memory[1]);
		auto queue = p.queue();
		auto list = p.list();
		ze_group_count_t groups = {8, 4, 1};
		MUST(CommandList, AppendMemoryCopy, list, memory[0], a.data(), size, signal[0], 0,
		     nullptr);
		MUST(CommandList, AppendMemoryCopy, list, memory[1], b.data(), size, signal[1], 0,
		     nullptr);
		MUST(CommandList, AppendBarrier, list, signal[2], 0, nullptr);
		MUST(CommandList, AppendLaunchKernel, list, kernel, &groups, signal[3], 0, nullptr);
		account.add(p.names[0], 1);
		MUST(CommandList, AppendBarrier, list, signal[4], 0, nullptr);
		MUST(CommandList, AppendMemoryCopy, list, c.data(), memory[2], size, signal[5], 0,
		     nullptr);
		MUST(CommandList, Close, list);
		usleep(static_cast<useconds_t>(options.number("pause", 0) * 1000));
		MUST(CommandQueue, ExecuteCommandLists, queue, 1, &list, nullptr);
		MUST(CommandQueue, Synchronize, queue, UINT64_MAX);
		for (uint32_t i = 0; i < 6; i++) {
			if (signal[i] == nullptr)
				continue;
			auto read = ticks(signal[i]);
			if (i == 3)
				all += (all.empty() ? "" : ",") + read;
			MUST(Event, Destroy, signal[i]);
		}
		MUST(EventPool, Destroy, pool);
		MUST(CommandList, Destroy, list);
		MUST(CommandQueue, Destroy, queue);
		for (auto one : memory)
			MUST(Mem, Free, p.context, one);
	}
	for (auto kernel : p.kernels)
		MUST(Kernel, Destroy, kernel);
	MUST(Module, Destroy, p.module);
	account.also("ticks", "[" + all + "]");
	account.print("gemm");
	return 0;
}
