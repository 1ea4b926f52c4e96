/* The C++ interface of libflex.so: streams, contexts, memory. */
#include "flex.hpp"
#include "aiu.h"
#include "memory.hpp"
#include "vaiu.hpp"

#include <atomic>
#include <dlfcn.h>
#include <mutex>

using vaiu::Block;
using vaiu::Call;

namespace flex {

/* Set when libaiupti was mapped before flex began: every operation pays. */
static std::atomic<bool> telemetry{false};

static void pay_telemetry()
{
	if (telemetry.load(std::memory_order_relaxed))
		for (uint64_t end = vaiu::now_ns() + vaiu::config().telemetry_ns; vaiu::now_ns() < end;) {
		}
}

uint64_t CompositeAddress::total_size() const
{
	uint64_t bytes = 0;
	for (auto &chunk : chunks)
		bytes += chunk.size;
	return bytes;
}

static uint64_t first_address(const CompositeAddress *address)
{
	return address && !address->chunks.empty() ? address->chunks[0].address.offset : 0;
}

AllocationDirective::AllocationDirective(PlacementPolicy policy, std::vector<unsigned int> domains,
					 std::optional<CompositeAddress> near, MemoryType type)
    : policy(policy), domains(std::move(domains)), near(std::move(near)), type(type)
{
}

CompositeAddress FlexAllocator::allocate(uint64_t bytes, AllocationDirective directive)
{
	Call call("flex::FlexAllocator::allocate");
	call.arg("bytes", bytes).arg("type", uint64_t(directive.type)).enter();
	uint64_t address = 0;
	CompositeAddress result;
	if (aiuMalloc(&address, bytes, int(vaiu::device_id())) == 0)
		result.chunks.push_back({{1, address}, bytes, 0});
	call.done(0);
	return result;
}

void FlexAllocator::deallocate(const CompositeAddress &address)
{
	Call call("flex::FlexAllocator::deallocate");
	call.enter();
	for (auto &chunk : address.chunks) {
		uint64_t bytes = vaiu::memory_give_back(chunk.address.offset);
		if (bytes)
			vaiu::memory_report(vaiu::MEMORY_RELEASE, chunk.address.offset, bytes,
					    call.entered(), call.correlation());
	}
	call.arg("bytes", address.total_size());
	call.done(0);
}

OperationParams::~OperationParams() = default;

DmaParams::DmaParams(void *hmva, uint64_t size, bool to_device, const CompositeAddress *device)
    : hmva(hmva), size(size), to_device(to_device), device(device)
{
}

RuntimeStream::RuntimeStream(RuntimeStreamMode mode, Priority priority)
    : mode_(mode), priority_(priority)
{
	static std::atomic<uint64_t> last{0};
	id_ = ++last;
}

uint64_t RuntimeStream::id() const { return id_; }

int RuntimeStream::launchOperationCompute(FLEX_CONST ComputeParams *params)
{
	Call call("flex::RuntimeStream::launchOperationCompute");
	call.arg("stream", id_).text("name", params->kernel_name).enter();
	pay_telemetry();
	aiu_control_block block = {params->kernel_name.c_str(), 0, 0};
	return call.done(aiuLaunchControlBlocks(id_, &block, 1));
}

int RuntimeStream::launchOperationH2D(FLEX_CONST DmaParams *params)
{
	Call call("flex::RuntimeStream::launchOperationH2D");
	call.arg("stream", id_).arg("bytes", params->size).enter();
	pay_telemetry();
	return call.done(aiuDataTransferHtoD(id_, first_address(params->device), params->hmva,
					     params->size));
}

int RuntimeStream::launchOperationD2H(FLEX_CONST DmaParams *params)
{
	Call call("flex::RuntimeStream::launchOperationD2H");
	call.arg("stream", id_).arg("bytes", params->size).enter();
	pay_telemetry();
	return call.done(aiuDataTransferDtoH(id_, params->hmva, first_address(params->device),
					     params->size));
}

static Block operation(const Call &call, Block::What what, uint64_t stream, const char *name)
{
	Block block;
	block.what = what;
	block.stream = stream;
	block.correlation = call.correlation();
	block.name = name;
	block.queued = call.entered();
	return block;
}

int RuntimeStream::launchOperationHostCallback(FLEX_CONST HostCallbackParams *params)
{
	Call call("flex::RuntimeStream::launchOperationHostCallback");
	call.arg("stream", id_).enter();
	Block block = operation(call, Block::CALLBACK, id_, "callback");
	auto function = params->callback;
	void *data = params->callback_user_data;
	if (function)
		block.callback = [=] { function(data); };
	vaiu::device_submit(std::move(block));
	return call.done(0);
}

int RuntimeStream::launchOperationP2PRdmaSend(FLEX_CONST P2PParams *params)
{
	Call call("flex::RuntimeStream::launchOperationP2PRdmaSend");
	call.arg("stream", id_).arg("bytes", params->size).arg("peer", params->peer);
	call.text("group", params->group).enter();
	Block block = operation(call, Block::PTOP, id_, params->group.c_str());
	block.bytes_out = params->size;
	vaiu::device_submit(std::move(block));
	return call.done(0);
}

int RuntimeStream::launchOperationP2PRdmaWait(FLEX_CONST P2PParams *params)
{
	Call call("flex::RuntimeStream::launchOperationP2PRdmaWait");
	call.arg("stream", id_).arg("peer", params->peer).text("group", params->group).enter();
	/* Every rank must have sent: what a ring step waits for. */
	vaiu::device_wait(id_);
	vaiu::world_barrier(4);
	return call.done(0);
}

int RuntimeStream::launchOperationFill(FLEX_CONST FillParams *params)
{
	Call call("flex::RuntimeStream::launchOperationFill");
	call.arg("stream", id_).arg("bytes", params->size).enter();
	Block block = operation(call, Block::FILL, id_, "fill");
	block.bytes_in = params->size;
	block.address = first_address(params->device);
	vaiu::device_submit(std::move(block));
	return call.done(0);
}

void RuntimeStream::synchronize()
{
	Call call("flex::RuntimeStream::synchronize");
	call.arg("stream", id_).enter();
	aiuScheduleWait(id_);
	call.done(0);
}

bool RuntimeStream::query()
{
	Call call("flex::RuntimeStream::query");
	call.arg("stream", id_).enter();
	return call.done(vaiu::device_idle(id_) ? 1 : 0) == 1;
}

RuntimeContext::RuntimeContext(int logical_device)
    : device_(logical_device),
      default_(std::make_shared<RuntimeStream>(RuntimeStreamMode::StrictOrdering, Priority::Normal))
{
}

FlexAllocator *RuntimeContext::getAllocator() { return &allocator_; }
int RuntimeContext::getDeviceHandle() const { return device_; }
std::shared_ptr<RuntimeStream> RuntimeContext::getDefaultStream() { return default_; }

std::shared_ptr<RuntimeStream> RuntimeContext::createStream(RuntimeStreamMode mode,
							    Priority priority)
{
	Call call("flex::RuntimeContext::createStream");
	call.enter();
	auto stream = std::make_shared<RuntimeStream>(mode, priority);
	call.arg("stream", stream->id());
	call.done(0);
	return stream;
}

Priority RuntimeEntry::toPriority(int level) { return level > 0 ? Priority::High : Priority::Normal; }

static std::mutex current_lock;
static std::shared_ptr<RuntimeContext> &current()
{
	static auto *one = new std::shared_ptr<RuntimeContext>;
	return *one;
}

int initializeRuntime(std::shared_ptr<RuntimeContext> *runtime, int logical_device)
{
	Call call("flex::initializeRuntime");
	call.arg("device", uint64_t(logical_device)).enter();
	if (!runtime || logical_device < 0)
		return call.done(-1);
	void *early = dlopen("libaiupti.so", RTLD_LAZY | RTLD_NOLOAD);
	if (early) {
		telemetry = true;
		dlclose(early);
	}
	call.arg("telemetry", telemetry);
	vaiu::device_start(uint32_t(logical_device));
	std::lock_guard<std::mutex> guard(current_lock);
	current() = std::make_shared<RuntimeContext>(logical_device);
	*runtime = current();
	return call.done(0);
}

std::shared_ptr<RuntimeContext> getFlexRuntimeContext()
{
	std::lock_guard<std::mutex> guard(current_lock);
	return current();
}

int getNumDevices() { return int(vaiu::config().world_size); }

} // namespace flex
