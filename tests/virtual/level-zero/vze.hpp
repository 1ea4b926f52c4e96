/*
 * The virtual Level Zero driver: what every file of it includes.
 *
 * The interface is the one of Debian's libze-dev 1.8.12. Functions that came
 * later are declared here by their published prototypes; programs reach them by
 * name or through zeDriverGetExtensionFunctionAddress. README.md explains the
 * parts and the environment variables.
 */
#ifndef VZE_HPP
#define VZE_HPP

#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <level_zero/zes_api.h>
#include <level_zero/zes_ddi.h>
#include <level_zero/zet_api.h>
#include <level_zero/zet_ddi.h>

#include <cstddef>
#include <cstdint>

#define VZE_EXPORT extern "C" __attribute__((visibility("default")))

/* ze_group_size_t of newer headers. */
struct vze_group_size_t {
	uint32_t x, y, z;
};

/* ze_event_counter_based_desc_t of newer headers. */
struct vze_counter_event_desc_t {
	uint32_t stype;
	const void *pNext;
	uint32_t flags;
	uint32_t signal;
	uint32_t wait;
};

/* ze_init_driver_type_desc_t of newer headers. */
struct vze_init_desc_t {
	uint32_t stype;
	const void *pNext;
	uint32_t flags;
};

typedef void (*vze_host_function_t)(void *);

VZE_EXPORT ze_result_t zeInitDrivers(uint32_t *pCount, ze_driver_handle_t *phDrivers,
				     vze_init_desc_t *desc);
VZE_EXPORT ze_result_t zeCommandListAppendLaunchKernelWithArguments(
	ze_command_list_handle_t hCommandList, ze_kernel_handle_t hKernel,
	ze_group_count_t groupCounts, vze_group_size_t groupSizes, void **pArguments,
	const void *pNext, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
	ze_event_handle_t *phWaitEvents);
VZE_EXPORT ze_result_t zeCommandListAppendLaunchKernelWithParameters(
	ze_command_list_handle_t hCommandList, ze_kernel_handle_t hKernel,
	const ze_group_count_t *pGroupCounts, const void *pNext, ze_event_handle_t hSignalEvent,
	uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents);
VZE_EXPORT ze_result_t zeCommandListImmediateAppendCommandListsExp(
	ze_command_list_handle_t hCommandListImmediate, uint32_t numCommandLists,
	ze_command_list_handle_t *phCommandLists, ze_event_handle_t hSignalEvent,
	uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents);
VZE_EXPORT ze_result_t zeCommandListHostSynchronize(ze_command_list_handle_t hCommandList,
						    uint64_t timeout);
VZE_EXPORT ze_result_t zeDeviceSynchronize(ze_device_handle_t hDevice);
VZE_EXPORT ze_result_t zeCommandListAppendMemoryCopyWithParameters(
	ze_command_list_handle_t hCommandList, void *dstptr, const void *srcptr, size_t size,
	const void *pNext, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
	ze_event_handle_t *phWaitEvents);
/* Same meaning, its own argument order. */
VZE_EXPORT ze_result_t zexCommandListAppendMemoryCopyWithParameters(
	ze_command_list_handle_t hCommandList, void *dstptr, const void *srcptr, size_t size,
	const void *pNext, uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents,
	ze_event_handle_t hSignalEvent);
VZE_EXPORT ze_result_t zeCommandListAppendMemoryFillWithParameters(
	ze_command_list_handle_t hCommandList, void *ptr, const void *pattern,
	size_t pattern_size, size_t size, const void *pNext, ze_event_handle_t hSignalEvent,
	uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents);
VZE_EXPORT ze_result_t zeCommandListAppendHostFunction(
	ze_command_list_handle_t hCommandList, vze_host_function_t pfnHostFunction,
	void *pUserData, const void *pNext, ze_event_handle_t hSignalEvent,
	uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents);
VZE_EXPORT ze_result_t zeEventCounterBasedCreate(ze_context_handle_t hContext,
						 ze_device_handle_t hDevice,
						 const vze_counter_event_desc_t *desc,
						 ze_event_handle_t *phEvent);
VZE_EXPORT ze_result_t zexCounterBasedEventCreate2(ze_context_handle_t hContext,
						   ze_device_handle_t hDevice,
						   const vze_counter_event_desc_t *desc,
						   ze_event_handle_t *phEvent);
VZE_EXPORT ze_result_t zexKernelGetBaseAddress(ze_kernel_handle_t hKernel, uint64_t *base);
VZE_EXPORT ze_result_t zeKernelGetBinaryExp(ze_kernel_handle_t hKernel, size_t *pSize,
					    uint8_t *pKernelBinary);

/*
 * Test hooks; no real driver has them.
 *
 * vze_hook_next: the next call of `function` by this thread runs `callback`
 * inside, before it does anything else. The callback may throw, longjmp, be
 * cancelled or return. One hook per thread; a new one replaces it, a null
 * function removes it.
 */
VZE_EXPORT void vze_hook_next(const char *function, void (*callback)(void *), void *argument);
/* Writes out everything the truth file still lacks. */
VZE_EXPORT void vze_flush(void);
/* Calls of a function, and launches of kernels in all, in this process so far. */
VZE_EXPORT uint64_t vze_count(const char *function);
/* `seq` of the latest call that this thread made. */
VZE_EXPORT uint64_t vze_last_seq(void);

#endif
