/* Kernel launches. */
#include "append.hpp"
#include "usdt.hpp"

#include <algorithm>
#include <cstring>

namespace vze {

namespace {

/* Launching at the highest rate: nothing but the test hook and a counter. */
inline bool null_launch(const char *function, ze_kernel_handle_t hKernel)
{
	if (!config.null)
		return false;
	if (hooks_armed.load(std::memory_order_relaxed) != 0 && hook_matches(function))
		hook_run();
	if (auto *kernel = object<Kernel>(hKernel))
		kernel->immutable->launches->add();
	return true;
}

struct Sizes {
	const uint32_t *groups;
	const uint32_t *group_size;
	const void *indirect;
};

ze_result_t launch(Call &call, ze_command_list_handle_t hList, ze_kernel_handle_t hKernel,
		   const Sizes &sizes, Events events)
{
	call.with("kernel_handle", hKernel);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr) {
		call.with("list", hList);
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	}
	const uint32_t *size = sizes.group_size != nullptr ? sizes.group_size : kernel->group_size;
	/* The program may destroy the kernel before the line is written. */
	call.keep(kernel->own_immutable);
	call.with_text("kernel", kernel->immutable->info->name);
	call.with_triple("group_size", size[0], size[1], size[2]);
	Command command;
	command.kind = CommandKind::Kernel;
	command.kernel = kernel->own_immutable;
	command.turn = kernel->immutable->turn.fetch_add(1);
	usdt_launch(*kernel->immutable);
	command.indirect = sizes.indirect;
	std::copy(size, size + 3, command.group_size);
	if (sizes.groups != nullptr) {
		std::copy(sizes.groups, sizes.groups + 3, command.groups);
		call.with_triple("groups", sizes.groups[0], sizes.groups[1], sizes.groups[2]);
	}
	ze_result_t result = append(call, hList, std::move(command), events);
	if (result == ZE_RESULT_SUCCESS)
		kernel->immutable->launches->add();
	return result;
}

/* Launch with group counts behind a pointer. */
ze_result_t launch_at(Call &call, ze_command_list_handle_t hList, ze_kernel_handle_t hKernel,
		      const ze_group_count_t *count, Events events)
{
	if (!readable(count, sizeof(*count))) {
		call.with("list", hList).with("kernel_handle", hKernel);
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	}
	const uint32_t groups[3] = {count->groupCountX, count->groupCountY, count->groupCountZ};
	return launch(call, hList, hKernel, {groups, nullptr, nullptr}, events);
}

} // namespace

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeCommandListAppendLaunchKernel(ze_command_list_handle_t hCommandList,
					    ze_kernel_handle_t hKernel,
					    const ze_group_count_t *pLaunchFuncArgs,
					    ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
					    ze_event_handle_t *phWaitEvents)
{
	if (null_launch("zeCommandListAppendLaunchKernel", hKernel))
		return ZE_RESULT_SUCCESS;
	VZE_CALL(zeCommandListAppendLaunchKernel);
	return call.end(launch_at(call, hCommandList, hKernel, pLaunchFuncArgs,
				  {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendLaunchCooperativeKernel(ze_command_list_handle_t hCommandList,
						       ze_kernel_handle_t hKernel,
						       const ze_group_count_t *pLaunchFuncArgs,
						       ze_event_handle_t hSignalEvent,
						       uint32_t numWaitEvents,
						       ze_event_handle_t *phWaitEvents)
{
	if (null_launch("zeCommandListAppendLaunchCooperativeKernel", hKernel))
		return ZE_RESULT_SUCCESS;
	VZE_CALL(zeCommandListAppendLaunchCooperativeKernel);
	return call.end(launch_at(call, hCommandList, hKernel, pLaunchFuncArgs,
				  {hSignalEvent, numWaitEvents, phWaitEvents}));
}

/* The counts are read when the kernel starts; the execution's line has them. */
ze_result_t zeCommandListAppendLaunchKernelIndirect(ze_command_list_handle_t hCommandList,
						    ze_kernel_handle_t hKernel,
						    const ze_group_count_t *pLaunchArgumentsBuffer,
						    ze_event_handle_t hSignalEvent,
						    uint32_t numWaitEvents,
						    ze_event_handle_t *phWaitEvents)
{
	if (null_launch("zeCommandListAppendLaunchKernelIndirect", hKernel))
		return ZE_RESULT_SUCCESS;
	VZE_CALL(zeCommandListAppendLaunchKernelIndirect);
	if (pLaunchArgumentsBuffer == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	return call.end(launch(call, hCommandList, hKernel,
			       {nullptr, nullptr, pLaunchArgumentsBuffer},
			       {hSignalEvent, numWaitEvents, phWaitEvents}));
}

/* One call, one line and `numKernels` executions at most; the line has the first
 * kernel's name. */
ze_result_t zeCommandListAppendLaunchMultipleKernelsIndirect(
	ze_command_list_handle_t hCommandList, uint32_t numKernels, ze_kernel_handle_t *phKernels,
	const uint32_t *pCountBuffer, const ze_group_count_t *pLaunchArgumentsBuffer,
	ze_event_handle_t hSignalEvent, uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents)
{
	VZE_CALL(zeCommandListAppendLaunchMultipleKernelsIndirect);
	call.with("kernels", numKernels);
	if (numKernels > 1024 || !readable(phKernels, numKernels * sizeof(*phKernels)) ||
	    !readable(pCountBuffer, sizeof(*pCountBuffer)) || pLaunchArgumentsBuffer == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	uint32_t n = std::min(numKernels, *pCountBuffer);
	for (uint32_t i = 0; i < n; i++) {
		/* All wait for the events, the last one signals. */
		Events events = {i + 1 == n ? hSignalEvent : nullptr, numWaitEvents, phWaitEvents};
		ze_result_t result = launch(call, hCommandList, phKernels[i],
					    {nullptr, nullptr, pLaunchArgumentsBuffer + i}, events);
		if (result != ZE_RESULT_SUCCESS)
			return call.end(result);
		call.say_no_more();
	}
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandListAppendLaunchKernelWithParameters(
	ze_command_list_handle_t hCommandList, ze_kernel_handle_t hKernel,
	const ze_group_count_t *pGroupCounts, const void *, ze_event_handle_t hSignalEvent,
	uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents)
{
	if (null_launch("zeCommandListAppendLaunchKernelWithParameters", hKernel))
		return ZE_RESULT_SUCCESS;
	VZE_CALL(zeCommandListAppendLaunchKernelWithParameters);
	return call.end(launch_at(call, hCommandList, hKernel, pGroupCounts,
				  {hSignalEvent, numWaitEvents, phWaitEvents}));
}

ze_result_t zeCommandListAppendLaunchKernelWithArguments(
	ze_command_list_handle_t hCommandList, ze_kernel_handle_t hKernel,
	ze_group_count_t groupCounts, vze_group_size_t groupSizes, void **, const void *,
	ze_event_handle_t hSignalEvent, uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents)
{
	if (null_launch("zeCommandListAppendLaunchKernelWithArguments", hKernel))
		return ZE_RESULT_SUCCESS;
	VZE_CALL(zeCommandListAppendLaunchKernelWithArguments);
	const uint32_t groups[3] = {groupCounts.groupCountX, groupCounts.groupCountY,
				    groupCounts.groupCountZ};
	const uint32_t size[3] = {groupSizes.x, groupSizes.y, groupSizes.z};
	return call.end(launch(call, hCommandList, hKernel, {groups, size, nullptr},
			       {hSignalEvent, numWaitEvents, phWaitEvents}));
}
}
