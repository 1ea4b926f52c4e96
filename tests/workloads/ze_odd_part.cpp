/*
 * The part of `ze_odd` that is in a library of its own: it makes kernels, launches when
 * it is asked to, and once more when it goes away.
 */
#include <level_zero/ze_api.h>

#define API extern "C" __attribute__((visibility("default"), noinline))

static ze_command_list_handle_t last_list;
static ze_kernel_handle_t last_kernel;

/* The handle is never anywhere but on this stack and in a register. */
API ze_kernel_handle_t part_make(ze_module_handle_t module, const char *name)
{
	ze_kernel_desc_t desc = {ZE_STRUCTURE_TYPE_KERNEL_DESC, nullptr, 0, name};
	ze_kernel_handle_t out;
	return zeKernelCreate(module, &desc, &out) == ZE_RESULT_SUCCESS ? out : nullptr;
}

/* With sibling calls this is a jump. */
API ze_result_t part_launch(ze_command_list_handle_t list, ze_kernel_handle_t kernel,
			    const ze_group_count_t *count, ze_event_handle_t event, uint32_t waits,
			    ze_event_handle_t *for_these)
{
	return zeCommandListAppendLaunchKernel(list, kernel, count, event, waits, for_these);
}

API void part_at_end(ze_command_list_handle_t list, ze_kernel_handle_t kernel)
{
	last_list = list;
	last_kernel = kernel;
}

__attribute__((destructor)) static void at_end()
{
	ze_group_count_t count = {1, 1, 1};
	if (last_list != nullptr)
		zeCommandListAppendLaunchKernel(last_list, last_kernel, &count, nullptr, 0, nullptr);
}
