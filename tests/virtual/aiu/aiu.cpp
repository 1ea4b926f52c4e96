/* The exported C functions of libflex.so. */
#include "aiu.h"
#include "memory.hpp"
#include "vaiu.hpp"

#include <map>
#include <mutex>
#include <unistd.h>

using vaiu::Block;
using vaiu::Call;

namespace vaiu {

struct Memory {
	std::mutex lock;
	std::map<uint64_t, uint64_t> sizes;
	uint64_t next = 0x7a0000000000;
};

static Memory &memory()
{
	static Memory *one = new Memory;
	return *one;
}

uint64_t memory_take(uint64_t bytes)
{
	Memory &m = memory();
	std::lock_guard<std::mutex> guard(m.lock);
	uint64_t address = m.next;
	m.next += (bytes + 127) / 128 * 128;
	m.sizes[address] = bytes;
	uint64_t all = traffic().allocated += bytes;
	if (all > traffic().peak)
		traffic().peak = all;
	return address;
}

uint64_t memory_give_back(uint64_t address)
{
	Memory &m = memory();
	std::lock_guard<std::mutex> guard(m.lock);
	auto found = m.sizes.find(address);
	if (found == m.sizes.end())
		return 0;
	uint64_t bytes = found->second;
	m.sizes.erase(found);
	traffic().allocated -= bytes;
	return bytes;
}

void memory_report(uint32_t what, uint64_t address, uint64_t bytes, uint64_t start,
		   uint32_t correlation)
{
	if (!wanted(MEMORY))
		return;
	Activity a;
	a.kind = MEMORY;
	a.what = what;
	a.device = device_id();
	a.stream = 0;
	a.correlation = correlation;
	a.start = start;
	a.end = now_ns();
	a.bytes = bytes;
	a.address = address;
	a.pid = uint32_t(getpid());
	report(a);
}

} // namespace vaiu

static void submit(Call &call, Block::What what, uint64_t stream, const char *name, uint64_t in,
		   uint64_t out, uint64_t address = 0)
{
	Block block;
	block.what = what;
	block.stream = stream;
	block.correlation = call.correlation();
	block.name = name;
	block.bytes_in = in;
	block.bytes_out = out;
	block.address = address;
	block.queued = call.entered();
	vaiu::device_submit(std::move(block));
}

static void submit_all(Call &call, uint64_t stream, const aiu_control_block *blocks,
		       uint32_t count)
{
	call.arg("stream", stream).arg("count", count);
	if (count)
		call.text("name", blocks[0].name);
	for (uint32_t i = 0; i < count; i++)
		submit(call, Block::CONTROL, stream, blocks[i].name, blocks[i].bytes_in,
		       blocks[i].bytes_out);
}

extern "C" int aiuLaunchControlBlocks(uint64_t stream, const aiu_control_block *blocks,
				      uint32_t count)
{
	Call call("aiuLaunchControlBlocks", 2);
	call.data(count).enter();
	submit_all(call, stream, blocks, count);
	return call.done(0);
}

extern "C" int aiuLaunchComputeStream(uint64_t stream, const aiu_control_block *blocks,
				      uint32_t count)
{
	Call call("aiuLaunchComputeStream", 22);
	call.data(count).enter();
	submit_all(call, stream, blocks, count);
	vaiu::device_wait(stream);
	return call.done(0);
}

extern "C" int aiuMalloc(uint64_t *address, uint64_t bytes, int device)
{
	Call call("aiuMalloc", 7);
	call.arg("bytes", bytes).arg("device", uint64_t(device)).data(bytes).enter();
	if (!address)
		return call.done(-1);
	*address = vaiu::memory_take(bytes);
	call.arg("address", *address);
	vaiu::memory_report(vaiu::MEMORY_ALLOCATION, *address, bytes, call.entered(),
			    call.correlation());
	return call.done(0);
}

extern "C" int aiuResizeTensorAllocation(uint64_t *address, uint64_t bytes)
{
	Call call("aiuResizeTensorAllocation", 8);
	call.arg("bytes", bytes).data(bytes).enter();
	uint64_t before = address ? vaiu::memory_give_back(*address) : 0;
	if (!before)
		return call.done(-1);
	*address = vaiu::memory_take(bytes);
	call.arg("address", *address);
	return call.done(0);
}

extern "C" int aiuDataTransferHtoD(uint64_t stream, uint64_t device, const void *host,
				   uint64_t bytes)
{
	Call call("aiuDataTransferHtoD", 35);
	call.data(bytes).enter();
	call.arg("stream", stream).arg("bytes", bytes).arg("dst", device);
	call.arg("src", reinterpret_cast<uint64_t>(host));
	submit(call, Block::HTOD, stream, "HtoD", bytes, 0, device);
	return call.done(0);
}

extern "C" int aiuDataTransferDtoH(uint64_t stream, void *host, uint64_t device, uint64_t bytes)
{
	Call call("aiuDataTransferDtoH", 34);
	call.data(bytes).enter();
	call.arg("stream", stream).arg("bytes", bytes).arg("src", device);
	call.arg("dst", reinterpret_cast<uint64_t>(host));
	submit(call, Block::DTOH, stream, "DtoH", 0, bytes, device);
	return call.done(0);
}

extern "C" int aiuScheduleWait(uint64_t stream)
{
	Call call("aiuScheduleWait", 17);
	call.arg("stream", stream).enter();
	vaiu::device_wait(stream);
	return call.done(0);
}

static int run_body(Call &call, const char *name, aiu_body *body, void *argument)
{
	call.text("name", name ? name : "").enter();
	return call.done(body ? body(argument) : -1);
}

extern "C" int aiuGraphExecution(const char *name, aiu_body *body, void *argument)
{
	Call call("aiuGraphExecution", 11);
	return run_body(call, name, body, argument);
}

extern "C" int aiuLaunchSuperNode(const char *name, aiu_body *body, void *argument)
{
	Call call("aiuLaunchSuperNode", 9);
	return run_body(call, name, body, argument);
}

extern "C" int aiuSuperNodeExecution(const char *name, aiu_body *body, void *argument)
{
	Call call("aiuSuperNodeExecution", 10);
	return run_body(call, name, body, argument);
}

extern "C" int aiuNodeCompute(const char *name, aiu_body *body, void *argument)
{
	Call call("aiuNodeCompute", 12);
	return run_body(call, name, body, argument);
}

static int plain(Call &call, uint64_t what, uint64_t nanoseconds)
{
	call.arg("what", what).enter();
	if (nanoseconds)
		vaiu::sleep_until(call.entered() + nanoseconds);
	return call.done(0);
}

#define DEFINE(name, cbid)                                                                         \
	extern "C" int name(uint64_t what, uint64_t nanoseconds)                                   \
	{                                                                                          \
		Call call(#name, cbid);                                                            \
		return plain(call, what, nanoseconds);                                             \
	}
AIU_PLAIN_CALLS(DEFINE)

#define BARRIER(n, cbid)                                                                           \
	extern "C" int aiuRDMABarrier##n(void)                                                     \
	{                                                                                          \
		Call call("aiuRDMABarrier" #n, cbid);                                              \
		call.enter();                                                                      \
		vaiu::world_barrier(n);                                                            \
		return call.done(0);                                                               \
	}
BARRIER(1, 23)
BARRIER(2, 25)
BARRIER(3, 28)
