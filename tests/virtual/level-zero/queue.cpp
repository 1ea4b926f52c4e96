/* Command queues, fences and waiting for a device. */
#include "append.hpp"
#include "handover.hpp"

namespace vze {

namespace {

ze_result_t execute(Call &call, Queue &queue, uint32_t count, ze_command_list_handle_t *lists,
		    Fence *fence)
{
	if (!readable(lists, count * sizeof(*lists)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	for (uint32_t i = 0; i < count; i++) {
		auto *list = object<CommandList>(lists[i]);
		if (list == nullptr || list->stream)
			return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
		if (!list->closed)
			return ZE_RESULT_ERROR_INVALID_ARGUMENT;
	}
	for (uint32_t i = 0; i < count; i++)
		submit_list(call, *object<CommandList>(lists[i]), *queue.stream, false);
	if (fence != nullptr)
		flush_fenced();
	else
		flush_queue();
	if (fence != nullptr) {
		Command command;
		command.signal = fence->state;
		queue.stream->engine->submit_one(*queue.stream, std::move(command));
	}
	if (queue.synchronous)
		wait_stream(*queue.stream, UINT64_MAX);
	return ZE_RESULT_SUCCESS;
}

} // namespace

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeCommandQueueCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
				 const ze_command_queue_desc_t *desc,
				 ze_command_queue_handle_t *phCommandQueue)
{
	VZE_CALL(zeCommandQueueCreate);
	auto *device = object<Device>(hDevice);
	if (object<Context>(hContext) == nullptr || device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phCommandQueue, sizeof(*phCommandQueue)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (desc->ordinal >= GROUPS || desc->index >= GROUP_QUEUES[desc->ordinal])
		return call.end(ZE_RESULT_ERROR_INVALID_ARGUMENT);
	auto *queue = new Queue;
	queue->device = device;
	queue->synchronous = desc->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
	queue->stream =
		engine_of(device->index, device->sub, desc->ordinal, desc->index).new_stream();
	*phCommandQueue = handle_of<ze_command_queue_handle_t>(queue);
	call.with("queue", *phCommandQueue).with("device_handle", hDevice);
	call.with("device", uint64_t{device->index}).with("mode", desc->mode);
	call.with("ordinal", desc->ordinal).with("index", desc->index);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandQueueDestroy(ze_command_queue_handle_t hCommandQueue)
{
	VZE_CALL(zeCommandQueueDestroy);
	call.with("queue", hCommandQueue);
	auto *queue = object<Queue>(hCommandQueue);
	if (queue == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	wait_stream(*queue->stream, UINT64_MAX);
	delete queue;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandQueueExecuteCommandLists(ze_command_queue_handle_t hCommandQueue,
					      uint32_t numCommandLists,
					      ze_command_list_handle_t *phCommandLists,
					      ze_fence_handle_t hFence)
{
	VZE_CALL(zeCommandQueueExecuteCommandLists);
	call.with("queue", hCommandQueue).with("lists", numCommandLists);
	if (config.null)
		return call.end(ZE_RESULT_SUCCESS);
	auto *queue = object<Queue>(hCommandQueue);
	auto *fence = hFence == nullptr ? nullptr : object<Fence>(hFence);
	if (queue == nullptr || (hFence != nullptr && fence == nullptr))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	return call.end(execute(call, *queue, numCommandLists, phCommandLists, fence));
}

ze_result_t zeCommandQueueSynchronize(ze_command_queue_handle_t hCommandQueue, uint64_t timeout)
{
	VZE_CALL(zeCommandQueueSynchronize);
	call.with("queue", hCommandQueue);
	auto *queue = object<Queue>(hCommandQueue);
	if (queue == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (config.null)
		return call.end(ZE_RESULT_SUCCESS);
	bool done = wait_stream(*queue->stream, timeout);
	return call.end(done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY);
}

/* Waits for all streams of all engines of the device in this process. */
ze_result_t zeDeviceSynchronize(ze_device_handle_t hDevice)
{
	VZE_CALL(zeDeviceSynchronize);
	auto *device = object<Device>(hDevice);
	if (device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	call.with("device", uint64_t{device->index});
	for (Engine *engine : engines_of(device->index))
		for (auto &event : engine->markers())
			wait_event(*event, UINT64_MAX);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeFenceCreate(ze_command_queue_handle_t hCommandQueue, const ze_fence_desc_t *desc,
			  ze_fence_handle_t *phFence)
{
	VZE_CALL(zeFenceCreate);
	if (object<Queue>(hCommandQueue) == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phFence, sizeof(*phFence)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	auto *fence = new Fence;
	fence->state = std::make_shared<EventState>();
	if ((desc->flags & ZE_FENCE_FLAG_SIGNALED) != 0)
		fence->state->signalled = true;
	*phFence = handle_of<ze_fence_handle_t>(fence);
	call.with("fence", *phFence);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeFenceDestroy(ze_fence_handle_t hFence)
{
	VZE_CALL(zeFenceDestroy);
	auto *fence = object<Fence>(hFence);
	if (fence == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	delete fence;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeFenceHostSynchronize(ze_fence_handle_t hFence, uint64_t timeout)
{
	VZE_CALL(zeFenceHostSynchronize);
	call.with("fence", hFence);
	auto *fence = object<Fence>(hFence);
	if (fence == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	bool done = config.null || wait_event(*fence->state, timeout);
	return call.end(done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY);
}

ze_result_t zeFenceQueryStatus(ze_fence_handle_t hFence)
{
	VZE_CALL(zeFenceQueryStatus);
	call.with("fence", hFence);
	auto *fence = object<Fence>(hFence);
	if (fence == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	bool done = config.null || fence->state->signalled;
	return call.end(done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY);
}

ze_result_t zeFenceReset(ze_fence_handle_t hFence)
{
	VZE_CALL(zeFenceReset);
	call.with("fence", hFence);
	auto *fence = object<Fence>(hFence);
	if (fence == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	fence->state->signalled = false;
	return call.end(ZE_RESULT_SUCCESS);
}
}
