/* Command lists: life, appending in general, events and barriers. */
#include "append.hpp"
#include "handover.hpp"

#include <cstring>

namespace vze {

namespace {

bool take_waits(const Events &events, Command &command)
{
	if (events.waits == 0)
		return true;
	if (events.waits > 65536 || !readable(events.wait, events.waits * sizeof(*events.wait)))
		return false;
	for (uint32_t i = 0; i < events.waits; i++) {
		auto *event = object<Event>(events.wait[i]);
		if (event == nullptr)
			return false;
		command.waits.push_back(event->state);
	}
	return true;
}

/* Lists are bounded, as everything that grows with the program's calls. */
constexpr size_t MAX_COMMANDS = 1 << 24;

CommandList *make_list(Device &device, uint32_t ordinal, bool in_order)
{
	auto *list = new CommandList;
	list->device = &device;
	list->ordinal = ordinal;
	list->in_order = in_order;
	return list;
}

} // namespace

bool wait_stream(Stream &stream, uint64_t timeout)
{
	return wait_event(*stream.engine->marker(stream), timeout);
}

ze_result_t append(Call &call, ze_command_list_handle_t hList, Command command, Events events)
{
	call.with("list", hList);
	auto *list = object<CommandList>(hList);
	if (list == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (events.signal != nullptr) {
		call.with("event", events.signal);
		auto *event = object<Event>(events.signal);
		if (event == nullptr)
			return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
		event->state->device = list->device->index;
		command.signal = event->state;
	}
	if (!take_waits(events, command))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	command.seq = call.seq;
	command.in_order = list->in_order;
	if (list->stream) {
		command.submit = call.seq;
		command.submit_ns = now_ns();
		list->stream->engine->submit_one(*list->stream, std::move(command));
		flush_immediate();
		if (list->synchronous)
			wait_stream(*list->stream, UINT64_MAX);
		return ZE_RESULT_SUCCESS;
	}
	std::lock_guard<std::mutex> guard(list->lock);
	if (list->closed)
		return ZE_RESULT_ERROR_INVALID_ARGUMENT;
	if (list->commands.size() >= MAX_COMMANDS)
		return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
	list->commands.push_back(std::move(command));
	return ZE_RESULT_SUCCESS;
}

void submit_list(Call &call, CommandList &list, Stream &stream, bool in_order)
{
	std::vector<Command> commands;
	{
		std::lock_guard<std::mutex> guard(list.lock);
		commands = list.commands;
	}
	uint64_t now = now_ns();
	for (Command &command : commands) {
		command.submit = call.seq;
		command.submit_ns = now;
		command.in_order = command.in_order || in_order;
	}
	if (!commands.empty())
		commands.front().after_all = true;
	stream.engine->submit(stream, std::move(commands));
}

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeCommandListCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
				const ze_command_list_desc_t *desc,
				ze_command_list_handle_t *phCommandList)
{
	VZE_CALL(zeCommandListCreate);
	auto *device = object<Device>(hDevice);
	call.with("device_handle", hDevice);
	if (object<Context>(hContext) == nullptr || device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phCommandList, sizeof(*phCommandList)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (desc->commandQueueGroupOrdinal >= GROUPS)
		return call.end(ZE_RESULT_ERROR_INVALID_ARGUMENT);
	/* Bit 3 of newer headers: in order. */
	bool in_order = (desc->flags & 8) != 0;
	auto *list = make_list(*device, desc->commandQueueGroupOrdinal, in_order);
	*phCommandList = handle_of<ze_command_list_handle_t>(list);
	call.with("list", *phCommandList).with("device", uint64_t{device->index});
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandListCreateImmediate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
					 const ze_command_queue_desc_t *desc,
					 ze_command_list_handle_t *phCommandList)
{
	VZE_CALL(zeCommandListCreateImmediate);
	auto *device = object<Device>(hDevice);
	call.with("device_handle", hDevice);
	if (object<Context>(hContext) == nullptr || device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phCommandList, sizeof(*phCommandList)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (desc->ordinal >= GROUPS || desc->index >= GROUP_QUEUES[desc->ordinal])
		return call.end(ZE_RESULT_ERROR_INVALID_ARGUMENT);
	/* Queue flag bit 1 of newer headers: in order. */
	auto *list = make_list(*device, desc->ordinal, (desc->flags & 2) != 0);
	list->synchronous = desc->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
	list->stream =
		engine_of(device->index, device->sub, desc->ordinal, desc->index).new_stream();
	*phCommandList = handle_of<ze_command_list_handle_t>(list);
	call.with("list", *phCommandList).with("device", uint64_t{device->index});
	call.with("immediate", 1).with("mode", desc->mode);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandListDestroy(ze_command_list_handle_t hCommandList)
{
	VZE_CALL(zeCommandListDestroy);
	call.with("list", hCommandList);
	auto *list = object<CommandList>(hCommandList);
	if (list == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	/* What an immediate list still runs is finished first. */
	if (list->stream && !config.null)
		wait_stream(*list->stream, UINT64_MAX);
	delete list;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandListClose(ze_command_list_handle_t hCommandList)
{
	VZE_CALL(zeCommandListClose);
	call.with("list", hCommandList);
	auto *list = object<CommandList>(hCommandList);
	if (list == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	std::lock_guard<std::mutex> guard(list->lock);
	list->closed = true;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandListReset(ze_command_list_handle_t hCommandList)
{
	VZE_CALL(zeCommandListReset);
	call.with("list", hCommandList);
	auto *list = object<CommandList>(hCommandList);
	if (list == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	std::lock_guard<std::mutex> guard(list->lock);
	list->closed = false;
	list->commands.clear();
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandListHostSynchronize(ze_command_list_handle_t hCommandList, uint64_t timeout)
{
	VZE_CALL(zeCommandListHostSynchronize);
	call.with("list", hCommandList);
	auto *list = object<CommandList>(hCommandList);
	if (list == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!list->stream)
		return call.end(ZE_RESULT_ERROR_INVALID_ARGUMENT);
	if (config.null)
		return call.end(ZE_RESULT_SUCCESS);
	bool done = wait_stream(*list->stream, timeout);
	return call.end(done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY);
}

ze_result_t zeCommandListImmediateAppendCommandListsExp(
	ze_command_list_handle_t hCommandListImmediate, uint32_t numCommandLists,
	ze_command_list_handle_t *phCommandLists, ze_event_handle_t hSignalEvent,
	uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListImmediateAppendCommandListsExp);
	auto *target = object<CommandList>(hCommandListImmediate);
	if (target == nullptr || !target->stream) {
		call.with("list", hCommandListImmediate);
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	}
	call.with("lists", numCommandLists);
	if (!readable(phCommandLists, numCommandLists * sizeof(*phCommandLists)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	for (uint32_t i = 0; i < numCommandLists; i++) {
		auto *list = object<CommandList>(phCommandLists[i]);
		if (list == nullptr || list->stream)
			return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	}
	/* The wait comes before the lists, the signal behind them. */
	Command before;
	before.kind = CommandKind::WaitEvents;
	before.after_all = true;
	ze_result_t result = append(call, hCommandListImmediate, std::move(before),
				    {nullptr, numWaitEvents, phWaitEvents});
	if (result != ZE_RESULT_SUCCESS)
		return call.end(result);
	if (hSignalEvent != nullptr)
		call.with("event", hSignalEvent);
	call.say_no_more();
	for (uint32_t i = 0; i < numCommandLists; i++)
		submit_list(call, *object<CommandList>(phCommandLists[i]), *target->stream,
			    target->in_order);
	Command after;
	after.kind = CommandKind::SignalEvent;
	after.after_all = true;
	return call.end(
		append(call, hCommandListImmediate, std::move(after), {hSignalEvent, 0, nullptr}));
}

ze_result_t zeCommandListAppendBarrier(ze_command_list_handle_t hCommandList,
				       ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
				       ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendBarrier);
	Command command;
	command.kind = CommandKind::Barrier;
	return call.end(append(call, hCommandList, std::move(command),
			       {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendMemoryRangesBarrier(ze_command_list_handle_t hCommandList,
						   uint32_t numRanges, const size_t *pRangeSizes,
						   const void **pRanges,
						   ze_event_handle_t hSignalEvent,
						   uint32_t numWaitEvents,
						   ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendMemoryRangesBarrier);
	call.with("ranges", numRanges);
	if (!readable(pRangeSizes, numRanges * sizeof(*pRangeSizes)) ||
	    !readable(pRanges, numRanges * sizeof(*pRanges)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	Command command;
	command.kind = CommandKind::Barrier;
	return call.end(append(call, hCommandList, std::move(command),
			       {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendSignalEvent(ze_command_list_handle_t hCommandList,
					   ze_event_handle_t hEvent)
{
	VZE_CALL(zeCommandListAppendSignalEvent);
	Command command;
	command.kind = CommandKind::SignalEvent;
	command.after_all = true;
	return call.end(append(call, hCommandList, std::move(command), {hEvent, 0, nullptr}));
}

ze_result_t zeCommandListAppendEventReset(ze_command_list_handle_t hCommandList,
					  ze_event_handle_t hEvent)
{
	VZE_CALL(zeCommandListAppendEventReset);
	Command command;
	command.kind = CommandKind::ResetEvent;
	command.after_all = true;
	return call.end(append(call, hCommandList, std::move(command), {hEvent, 0, nullptr}));
}

ze_result_t zeCommandListAppendWaitOnEvents(ze_command_list_handle_t hCommandList,
					    uint32_t numEvents, ze_event_handle_t *phEvents)
{
	VZE_CALL(zeCommandListAppendWaitOnEvents);
	Command command;
	command.kind = CommandKind::WaitEvents;
	command.after_all = true;
	return call.end(
		append(call, hCommandList, std::move(command), {nullptr, numEvents, phEvents}));
}

ze_result_t zeCommandListAppendWriteGlobalTimestamp(ze_command_list_handle_t hCommandList,
						    uint64_t *dstptr,
						    ze_event_handle_t hSignalEvent,
						    uint32_t numWaitEvents,
						    ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendWriteGlobalTimestamp);
	auto *list = object<CommandList>(hCommandList);
	if (list == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	Command command;
	command.kind = CommandKind::WriteTimestamp;
	command.to = dstptr;
	command.clock_device = list->device->index;
	return call.end(append(call, hCommandList, std::move(command),
			       {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendQueryKernelTimestamps(
	ze_command_list_handle_t hCommandList, uint32_t numEvents, ze_event_handle_t *phEvents,
	void *dstptr, const size_t *, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
	ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendQueryKernelTimestamps);
	if (!readable(phEvents, numEvents * sizeof(*phEvents)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	Command command;
	command.kind = CommandKind::QueryTimestamps;
	command.to = dstptr;
	for (uint32_t i = 0; i < numEvents; i++) {
		auto *event = object<Event>(phEvents[i]);
		if (event == nullptr)
			return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
		command.queried.push_back(event->state);
	}
	return call.end(append(call, hCommandList, std::move(command),
			       {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendHostFunction(ze_command_list_handle_t hCommandList,
					    vze_host_function_t pfnHostFunction, void *pUserData,
					    const void *, ze_event_handle_t hSignalEvent,
					    uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendHostFunction);
	if (pfnHostFunction == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	Command command;
	command.kind = CommandKind::HostFunction;
	command.host_function = pfnHostFunction;
	command.to = pUserData;
	command.after_all = true;
	return call.end(append(call, hCommandList, std::move(command),
			       {hSignalEvent, numWaitEvents, phWaitEvents}));
}
}
