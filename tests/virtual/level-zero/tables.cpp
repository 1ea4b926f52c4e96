/*
 * The tables through which the loader calls this driver, and those that handles
 * point to. Every table that loader 1.8.12 asks for is here; what the driver does
 * not have answers that it is unsupported.
 */
#include "objects.hpp"

namespace vze {

namespace {

ze_result_t unsupported()
{
	return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}

template <typename T> ze_result_t begin_table(ze_api_version_t version, T *table)
{
	if (table == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	if (ZE_MAJOR_VERSION(version) != ZE_MAJOR_VERSION(ZE_API_VERSION_CURRENT))
		return ZE_RESULT_ERROR_UNSUPPORTED_VERSION;
	auto **entries = reinterpret_cast<void **>(table);
	for (size_t i = 0; i < sizeof(T) / sizeof(void *); i++)
		entries[i] = reinterpret_cast<void *>(unsupported);
	return ZE_RESULT_SUCCESS;
}

} // namespace

} // namespace vze

/* Defines GETTER for tables of type TYPE; SET(member, function) fills entries. */
#define TABLE(getter, type, ...)                                                                   \
	VZE_EXPORT ze_result_t getter(ze_api_version_t version, type *table)                       \
	{                                                                                          \
		ze_result_t result = vze::begin_table(version, table);                             \
		if (result != ZE_RESULT_SUCCESS)                                                   \
			return result;                                                             \
		__VA_ARGS__                                                                        \
		return ZE_RESULT_SUCCESS;                                                          \
	}
#define SET(member, function) table->pfn##member = function;

TABLE(zeGetGlobalProcAddrTable, ze_global_dditable_t, SET(Init, zeInit))

TABLE(zeGetDriverProcAddrTable, ze_driver_dditable_t,
      SET(Get, zeDriverGet)
      SET(GetApiVersion, zeDriverGetApiVersion)
      SET(GetProperties, zeDriverGetProperties)
      SET(GetIpcProperties, zeDriverGetIpcProperties)
      SET(GetExtensionProperties, zeDriverGetExtensionProperties)
      SET(GetExtensionFunctionAddress, zeDriverGetExtensionFunctionAddress))

TABLE(zeGetDeviceProcAddrTable, ze_device_dditable_t,
      SET(Get, zeDeviceGet)
      SET(GetSubDevices, zeDeviceGetSubDevices)
      SET(GetProperties, zeDeviceGetProperties)
      SET(GetComputeProperties, zeDeviceGetComputeProperties)
      SET(GetModuleProperties, zeDeviceGetModuleProperties)
      SET(GetCommandQueueGroupProperties, zeDeviceGetCommandQueueGroupProperties)
      SET(GetMemoryProperties, zeDeviceGetMemoryProperties)
      SET(GetMemoryAccessProperties, zeDeviceGetMemoryAccessProperties)
      SET(GetCacheProperties, zeDeviceGetCacheProperties)
      SET(GetP2PProperties, zeDeviceGetP2PProperties)
      SET(CanAccessPeer, zeDeviceCanAccessPeer)
      SET(GetStatus, zeDeviceGetStatus)
      SET(GetGlobalTimestamps, zeDeviceGetGlobalTimestamps)
      SET(PciGetPropertiesExt, zeDevicePciGetPropertiesExt))

TABLE(zeGetContextProcAddrTable, ze_context_dditable_t,
      SET(Create, zeContextCreate)
      SET(CreateEx, zeContextCreateEx)
      SET(Destroy, zeContextDestroy)
      SET(GetStatus, zeContextGetStatus)
      SET(SystemBarrier, zeContextSystemBarrier)
      SET(MakeMemoryResident, zeContextMakeMemoryResident)
      SET(EvictMemory, zeContextEvictMemory))

TABLE(zeGetCommandQueueProcAddrTable, ze_command_queue_dditable_t,
      SET(Create, zeCommandQueueCreate)
      SET(Destroy, zeCommandQueueDestroy)
      SET(ExecuteCommandLists, zeCommandQueueExecuteCommandLists)
      SET(Synchronize, zeCommandQueueSynchronize))

TABLE(zeGetCommandListProcAddrTable, ze_command_list_dditable_t,
      SET(Create, zeCommandListCreate)
      SET(CreateImmediate, zeCommandListCreateImmediate)
      SET(Destroy, zeCommandListDestroy)
      SET(Close, zeCommandListClose)
      SET(Reset, zeCommandListReset)
      SET(AppendWriteGlobalTimestamp, zeCommandListAppendWriteGlobalTimestamp)
      SET(AppendBarrier, zeCommandListAppendBarrier)
      SET(AppendMemoryRangesBarrier, zeCommandListAppendMemoryRangesBarrier)
      SET(AppendMemoryCopy, zeCommandListAppendMemoryCopy)
      SET(AppendMemoryFill, zeCommandListAppendMemoryFill)
      SET(AppendMemoryCopyRegion, zeCommandListAppendMemoryCopyRegion)
      SET(AppendMemoryCopyFromContext, zeCommandListAppendMemoryCopyFromContext)
      SET(AppendMemoryPrefetch, zeCommandListAppendMemoryPrefetch)
      SET(AppendMemAdvise, zeCommandListAppendMemAdvise)
      SET(AppendSignalEvent, zeCommandListAppendSignalEvent)
      SET(AppendWaitOnEvents, zeCommandListAppendWaitOnEvents)
      SET(AppendEventReset, zeCommandListAppendEventReset)
      SET(AppendQueryKernelTimestamps, zeCommandListAppendQueryKernelTimestamps)
      SET(AppendLaunchKernel, zeCommandListAppendLaunchKernel)
      SET(AppendLaunchCooperativeKernel, zeCommandListAppendLaunchCooperativeKernel)
      SET(AppendLaunchKernelIndirect, zeCommandListAppendLaunchKernelIndirect)
      SET(AppendLaunchMultipleKernelsIndirect, zeCommandListAppendLaunchMultipleKernelsIndirect))

TABLE(zeGetFenceProcAddrTable, ze_fence_dditable_t,
      SET(Create, zeFenceCreate)
      SET(Destroy, zeFenceDestroy)
      SET(HostSynchronize, zeFenceHostSynchronize)
      SET(QueryStatus, zeFenceQueryStatus)
      SET(Reset, zeFenceReset))

TABLE(zeGetEventPoolProcAddrTable, ze_event_pool_dditable_t,
      SET(Create, zeEventPoolCreate)
      SET(Destroy, zeEventPoolDestroy))

TABLE(zeGetEventProcAddrTable, ze_event_dditable_t,
      SET(Create, zeEventCreate)
      SET(Destroy, zeEventDestroy)
      SET(HostSignal, zeEventHostSignal)
      SET(HostSynchronize, zeEventHostSynchronize)
      SET(QueryStatus, zeEventQueryStatus)
      SET(HostReset, zeEventHostReset)
      SET(QueryKernelTimestamp, zeEventQueryKernelTimestamp))

TABLE(zeGetEventExpProcAddrTable, ze_event_exp_dditable_t,
      SET(QueryTimestampsExp, zeEventQueryTimestampsExp))

TABLE(zeGetModuleProcAddrTable, ze_module_dditable_t,
      SET(Create, zeModuleCreate)
      SET(Destroy, zeModuleDestroy)
      SET(DynamicLink, zeModuleDynamicLink)
      SET(GetNativeBinary, zeModuleGetNativeBinary)
      SET(GetKernelNames, zeModuleGetKernelNames)
      SET(GetProperties, zeModuleGetProperties)
      SET(GetFunctionPointer, zeModuleGetFunctionPointer))

TABLE(zeGetModuleBuildLogProcAddrTable, ze_module_build_log_dditable_t,
      SET(Destroy, zeModuleBuildLogDestroy)
      SET(GetString, zeModuleBuildLogGetString))

TABLE(zeGetKernelProcAddrTable, ze_kernel_dditable_t,
      SET(Create, zeKernelCreate)
      SET(Destroy, zeKernelDestroy)
      SET(SetCacheConfig, zeKernelSetCacheConfig)
      SET(SetGroupSize, zeKernelSetGroupSize)
      SET(SuggestGroupSize, zeKernelSuggestGroupSize)
      SET(SuggestMaxCooperativeGroupCount, zeKernelSuggestMaxCooperativeGroupCount)
      SET(SetArgumentValue, zeKernelSetArgumentValue)
      SET(SetIndirectAccess, zeKernelSetIndirectAccess)
      SET(GetIndirectAccess, zeKernelGetIndirectAccess)
      SET(GetProperties, zeKernelGetProperties)
      SET(GetName, zeKernelGetName))

TABLE(zeGetMemProcAddrTable, ze_mem_dditable_t,
      SET(AllocShared, zeMemAllocShared)
      SET(AllocDevice, zeMemAllocDevice)
      SET(AllocHost, zeMemAllocHost)
      SET(Free, zeMemFree)
      SET(FreeExt, zeMemFreeExt)
      SET(GetAllocProperties, zeMemGetAllocProperties)
      SET(GetAddressRange, zeMemGetAddressRange))

TABLE(zetGetModuleProcAddrTable, zet_module_dditable_t,
      SET(GetDebugInfo, zetModuleGetDebugInfo))

/* Nothing in these is implemented. */
TABLE(zeGetDeviceExpProcAddrTable, ze_device_exp_dditable_t)
TABLE(zeGetImageProcAddrTable, ze_image_dditable_t)
TABLE(zeGetImageExpProcAddrTable, ze_image_exp_dditable_t)
TABLE(zeGetKernelExpProcAddrTable, ze_kernel_exp_dditable_t)
TABLE(zeGetSamplerProcAddrTable, ze_sampler_dditable_t)
TABLE(zeGetPhysicalMemProcAddrTable, ze_physical_mem_dditable_t)
TABLE(zeGetVirtualMemProcAddrTable, ze_virtual_mem_dditable_t)
TABLE(zeGetFabricVertexExpProcAddrTable, ze_fabric_vertex_exp_dditable_t)
TABLE(zeGetFabricEdgeExpProcAddrTable, ze_fabric_edge_exp_dditable_t)
TABLE(zetGetDeviceProcAddrTable, zet_device_dditable_t)
TABLE(zetGetContextProcAddrTable, zet_context_dditable_t)
TABLE(zetGetCommandListProcAddrTable, zet_command_list_dditable_t)
TABLE(zetGetKernelProcAddrTable, zet_kernel_dditable_t)
TABLE(zetGetMetricGroupProcAddrTable, zet_metric_group_dditable_t)
TABLE(zetGetMetricGroupExpProcAddrTable, zet_metric_group_exp_dditable_t)
TABLE(zetGetMetricProcAddrTable, zet_metric_dditable_t)
TABLE(zetGetMetricStreamerProcAddrTable, zet_metric_streamer_dditable_t)
TABLE(zetGetMetricQueryPoolProcAddrTable, zet_metric_query_pool_dditable_t)
TABLE(zetGetMetricQueryProcAddrTable, zet_metric_query_dditable_t)
TABLE(zetGetTracerExpProcAddrTable, zet_tracer_exp_dditable_t)
TABLE(zetGetDebugProcAddrTable, zet_debug_dditable_t)
TABLE(zesGetDriverProcAddrTable, zes_driver_dditable_t)
TABLE(zesGetDeviceProcAddrTable, zes_device_dditable_t)
TABLE(zesGetSchedulerProcAddrTable, zes_scheduler_dditable_t)
TABLE(zesGetPerformanceFactorProcAddrTable, zes_performance_factor_dditable_t)
TABLE(zesGetPowerProcAddrTable, zes_power_dditable_t)
TABLE(zesGetFrequencyProcAddrTable, zes_frequency_dditable_t)
TABLE(zesGetEngineProcAddrTable, zes_engine_dditable_t)
TABLE(zesGetStandbyProcAddrTable, zes_standby_dditable_t)
TABLE(zesGetFirmwareProcAddrTable, zes_firmware_dditable_t)
TABLE(zesGetMemoryProcAddrTable, zes_memory_dditable_t)
TABLE(zesGetFabricPortProcAddrTable, zes_fabric_port_dditable_t)
TABLE(zesGetTemperatureProcAddrTable, zes_temperature_dditable_t)
TABLE(zesGetPsuProcAddrTable, zes_psu_dditable_t)
TABLE(zesGetFanProcAddrTable, zes_fan_dditable_t)
TABLE(zesGetLedProcAddrTable, zes_led_dditable_t)
TABLE(zesGetRasProcAddrTable, zes_ras_dditable_t)
TABLE(zesGetDiagnosticsProcAddrTable, zes_diagnostics_dditable_t)
