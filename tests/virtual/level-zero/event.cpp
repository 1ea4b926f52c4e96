/* Event pools and events. */
#include "objects.hpp"

#include <cstdlib>
#include <cstring>

namespace vze {

namespace {

/* A timestamp packet has a cache line of its own. */
constexpr size_t PACKET = 64;

/* Bits of newer headers' counter-based event flags. */
constexpr uint32_t COUNTER_TIMESTAMPS = (1U << 4) | (1U << 5);

std::shared_ptr<uint8_t> new_packets(size_t count)
{
	auto *memory = static_cast<uint8_t *>(aligned_alloc(PACKET, count * PACKET));
	if (memory != nullptr)
		memset(memory, 0xff, count * PACKET);
	return {memory, free};
}

Event *new_event(bool timestamps, std::shared_ptr<uint8_t> packets, uint8_t *packet)
{
	auto *event = new Event;
	event->timestamps = timestamps;
	event->state = std::make_shared<EventState>();
	event->state->own_packet = std::move(packets);
	if (timestamps)
		event->state->packet = reinterpret_cast<uint32_t *>(packet);
	return event;
}

ze_result_t counter_event(Call &call, ze_context_handle_t hContext, ze_device_handle_t hDevice,
			  const vze_counter_event_desc_t *desc, ze_event_handle_t *phEvent)
{
	auto *device = object<Device>(hDevice);
	if (object<Context>(hContext) == nullptr || device == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!readable(desc, sizeof(*desc)) || !writable(phEvent, sizeof(*phEvent)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	auto packets = new_packets(1);
	uint8_t *packet = packets.get();
	auto *event = new_event((desc->flags & COUNTER_TIMESTAMPS) != 0, std::move(packets), packet);
	event->device = event->state->device = device->index;
	*phEvent = handle_of<ze_event_handle_t>(event);
	call.with("event", *phEvent).with("flags", desc->flags);
	return ZE_RESULT_SUCCESS;
}

ze_result_t query(Call &call, const Event &event, ze_kernel_timestamp_result_t *out)
{
	if (!writable(out, sizeof(*out)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	if (!event.timestamps)
		return ZE_RESULT_ERROR_INVALID_ARGUMENT;
	const EventState &state = *event.state;
	if (!state.signalled)
		return ZE_RESULT_NOT_READY;
	out->global.kernelStart = kernel_ticks(state.device, state.start_ns);
	out->global.kernelEnd = kernel_ticks(state.device, state.end_ns);
	out->context = out->global;
	call.with("start_ticks", out->global.kernelStart);
	call.with("end_ticks", out->global.kernelEnd);
	return ZE_RESULT_SUCCESS;
}

} // namespace

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeEventPoolCreate(ze_context_handle_t hContext, const ze_event_pool_desc_t *desc,
			      uint32_t, ze_device_handle_t *, ze_event_pool_handle_t *phEventPool)
{
	VZE_CALL(zeEventPoolCreate);
	if (object<Context>(hContext) == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phEventPool, sizeof(*phEventPool)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (desc->count == 0 || desc->count > 1U << 20)
		return call.end(ZE_RESULT_ERROR_INVALID_SIZE);
	auto *pool = new EventPool;
	pool->flags = desc->flags;
	pool->count = desc->count;
	pool->packets = new_packets(desc->count);
	*phEventPool = handle_of<ze_event_pool_handle_t>(pool);
	call.with("pool", *phEventPool).with("count", desc->count).with("flags", desc->flags);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeEventPoolDestroy(ze_event_pool_handle_t hEventPool)
{
	VZE_CALL(zeEventPoolDestroy);
	auto *pool = object<EventPool>(hEventPool);
	if (pool == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	delete pool;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeEventCreate(ze_event_pool_handle_t hEventPool, const ze_event_desc_t *desc,
			  ze_event_handle_t *phEvent)
{
	VZE_CALL(zeEventCreate);
	auto *pool = object<EventPool>(hEventPool);
	if (pool == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phEvent, sizeof(*phEvent)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (desc->index >= pool->count)
		return call.end(ZE_RESULT_ERROR_INVALID_ARGUMENT);
	bool timestamps = (pool->flags & ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP) != 0;
	auto *event = new_event(timestamps, pool->packets,
				pool->packets.get() + desc->index * PACKET);
	*phEvent = handle_of<ze_event_handle_t>(event);
	call.with("event", *phEvent).with("pool", hEventPool);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeEventCounterBasedCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
				      const vze_counter_event_desc_t *desc,
				      ze_event_handle_t *phEvent)
{
	VZE_CALL(zeEventCounterBasedCreate);
	return call.end(counter_event(call, hContext, hDevice, desc, phEvent));
}

ze_result_t zexCounterBasedEventCreate2(ze_context_handle_t hContext, ze_device_handle_t hDevice,
					const vze_counter_event_desc_t *desc,
					ze_event_handle_t *phEvent)
{
	VZE_CALL(zexCounterBasedEventCreate2);
	return call.end(counter_event(call, hContext, hDevice, desc, phEvent));
}

ze_result_t zeEventDestroy(ze_event_handle_t hEvent)
{
	VZE_CALL(zeEventDestroy);
	call.with("event", hEvent);
	auto *event = object<Event>(hEvent);
	if (event == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	delete event;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeEventHostSignal(ze_event_handle_t hEvent)
{
	VZE_CALL(zeEventHostSignal);
	call.with("event", hEvent);
	auto *event = object<Event>(hEvent);
	if (event == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	uint64_t now = now_ns();
	signal_event(*event->state, now, now);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeEventHostReset(ze_event_handle_t hEvent)
{
	VZE_CALL(zeEventHostReset);
	call.with("event", hEvent);
	auto *event = object<Event>(hEvent);
	if (event == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	reset_event(*event->state);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeEventHostSynchronize(ze_event_handle_t hEvent, uint64_t timeout)
{
	VZE_CALL(zeEventHostSynchronize);
	call.with("event", hEvent);
	auto *event = object<Event>(hEvent);
	if (event == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	bool done = config.null || wait_event(*event->state, timeout);
	return call.end(done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY);
}

ze_result_t zeEventQueryStatus(ze_event_handle_t hEvent)
{
	VZE_CALL(zeEventQueryStatus);
	call.with("event", hEvent);
	auto *event = object<Event>(hEvent);
	if (event == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	bool done = config.null || event->state->signalled;
	return call.end(done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY);
}

ze_result_t zeEventQueryKernelTimestamp(ze_event_handle_t hEvent,
					ze_kernel_timestamp_result_t *dstptr)
{
	VZE_CALL(zeEventQueryKernelTimestamp);
	call.with("event", hEvent);
	auto *event = object<Event>(hEvent);
	if (event == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	return call.end(query(call, *event, dstptr));
}

ze_result_t zeEventQueryTimestampsExp(ze_event_handle_t hEvent, ze_device_handle_t,
				      uint32_t *pCount, ze_kernel_timestamp_result_t *pTimestamps)
{
	VZE_CALL(zeEventQueryTimestampsExp);
	call.with("event", hEvent);
	auto *event = object<Event>(hEvent);
	if (event == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(pCount, sizeof(*pCount)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	ze_result_t result = ZE_RESULT_SUCCESS;
	if (*pCount > 0 && pTimestamps != nullptr)
		result = query(call, *event, pTimestamps);
	*pCount = 1;
	return call.end(result);
}
}
