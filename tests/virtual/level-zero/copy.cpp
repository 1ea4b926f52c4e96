/* Copies and fills. */
#include "append.hpp"

namespace vze {

namespace {

/* Letters of a memory type as profilers show it; M: not allocated here. */
const char *letter(const void *p)
{
	Allocation allocation;
	if (!find_allocation(p, allocation))
		return "M";
	switch (allocation.type) {
	case ZE_MEMORY_TYPE_DEVICE:
		return "D";
	case ZE_MEMORY_TYPE_HOST:
		return "H";
	case ZE_MEMORY_TYPE_SHARED:
		return "S";
	default:
		return "M";
	}
}

bool null_append(Call &call)
{
	if (config.null)
		call.end(ZE_RESULT_SUCCESS);
	return config.null;
}

ze_result_t copy(Call &call, ze_command_list_handle_t hList, void *to, const void *from,
		 size_t bytes, Events events)
{
	call.with("to", to).with("from", from).with("bytes", bytes);
	if (null_append(call))
		return ZE_RESULT_SUCCESS;
	if (to == nullptr || from == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	call.with_text("to_type", letter(to)).with_text("from_type", letter(from));
	Command command;
	command.kind = CommandKind::Copy;
	command.to = to;
	command.from = from;
	command.bytes = bytes;
	return append(call, hList, std::move(command), events);
}

ze_result_t fill(Call &call, ze_command_list_handle_t hList, void *to, const void *pattern,
		 size_t pattern_size, size_t bytes, Events events)
{
	call.with("to", to).with("pattern_size", pattern_size).with("bytes", bytes);
	if (null_append(call))
		return ZE_RESULT_SUCCESS;
	if (to == nullptr || pattern_size == 0 || pattern_size > 65536)
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	if (!readable(pattern, pattern_size))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	Command command;
	command.kind = CommandKind::Fill;
	command.to = to;
	command.bytes = bytes;
	auto *first = static_cast<const uint8_t *>(pattern);
	command.pattern.assign(first, first + pattern_size);
	return append(call, hList, std::move(command), events);
}

} // namespace

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeCommandListAppendMemoryCopy(ze_command_list_handle_t hCommandList, void *dstptr,
					  const void *srcptr, size_t size,
					  ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
					  ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendMemoryCopy);
	return call.end(copy(call, hCommandList, dstptr, srcptr, size,
			     {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendMemoryFill(ze_command_list_handle_t hCommandList, void *ptr,
					  const void *pattern, size_t pattern_size, size_t size,
					  ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
					  ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendMemoryFill);
	return call.end(fill(call, hCommandList, ptr, pattern, pattern_size, size,
			     {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendMemoryCopyFromContext(ze_command_list_handle_t hCommandList,
						     void *dstptr, ze_context_handle_t,
						     const void *srcptr, size_t size,
						     ze_event_handle_t hSignalEvent,
						     uint32_t numWaitEvents,
						     ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendMemoryCopyFromContext);
	return call.end(copy(call, hCommandList, dstptr, srcptr, size,
			     {hSignalEvent, numWaitEvents, phWaitEvents}));
}

/* One execution for the whole region; only a region without pitches, which is
 * one piece, takes effect in memory. */
ze_result_t zeCommandListAppendMemoryCopyRegion(
	ze_command_list_handle_t hCommandList, void *dstptr, const ze_copy_region_t *dstRegion,
	uint32_t dstPitch, uint32_t, const void *srcptr, const ze_copy_region_t *srcRegion,
	uint32_t srcPitch, uint32_t, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
	ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendMemoryCopyRegion);
	if (!readable(dstRegion, sizeof(*dstRegion)) || !readable(srcRegion, sizeof(*srcRegion)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	const ze_copy_region_t &region = *dstRegion;
	uint64_t rows = uint64_t{region.height} * (region.depth == 0 ? 1 : region.depth);
	uint64_t bytes = region.width * rows;
	if (dstPitch != region.width || srcPitch != region.width)
		return call.end(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
	return call.end(copy(call, hCommandList, dstptr, srcptr, bytes,
			     {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendMemoryCopyWithParameters(
	ze_command_list_handle_t hCommandList, void *dstptr, const void *srcptr, size_t size,
	const void *, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
	ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendMemoryCopyWithParameters);
	return call.end(copy(call, hCommandList, dstptr, srcptr, size,
			     {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zexCommandListAppendMemoryCopyWithParameters(
	ze_command_list_handle_t hCommandList, void *dstptr, const void *srcptr, size_t size,
	const void *, uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents,
	ze_event_handle_t hSignalEvent)
{
	VZE_CALL(zexCommandListAppendMemoryCopyWithParameters);
	return call.end(copy(call, hCommandList, dstptr, srcptr, size,
			     {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendMemoryFillWithParameters(
	ze_command_list_handle_t hCommandList, void *ptr, const void *pattern, size_t pattern_size,
	size_t size, const void *, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
	ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendMemoryFillWithParameters);
	return call.end(fill(call, hCommandList, ptr, pattern, pattern_size, size,
			     {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendMemoryPrefetch(ze_command_list_handle_t hCommandList, const void *,
					      size_t)
{
	return object<CommandList>(hCommandList) == nullptr ? ZE_RESULT_ERROR_INVALID_NULL_HANDLE
							    : ZE_RESULT_SUCCESS;
}

ze_result_t zeCommandListAppendMemAdvise(ze_command_list_handle_t hCommandList,
					 ze_device_handle_t, const void *, size_t,
					 ze_memory_advice_t)
{
	return object<CommandList>(hCommandList) == nullptr ? ZE_RESULT_ERROR_INVALID_NULL_HANDLE
							    : ZE_RESULT_SUCCESS;
}
}
