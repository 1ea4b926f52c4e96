/*
 * The dispatch tables that handles begin with. Newer loaders call through them
 * without asking the driver for a table: ze_handle_t -> ze_dditable_driver_t
 * {version, valid, one pointer for each table} -> function. The order of the
 * tables and of the newer functions is the one of loader 1.32.
 */
#include "objects.hpp"

namespace vze {

namespace {

enum Slot {
	RTAS_BUILDER,
	RTAS_BUILDER_EXP,
	RTAS_PARALLEL,
	RTAS_PARALLEL_EXP,
	GLOBAL,
	DRIVER,
	DRIVER_EXP,
	DEVICE,
	DEVICE_EXP,
	CONTEXT,
	COMMAND_QUEUE,
	COMMAND_LIST,
	COMMAND_LIST_EXP,
	IMAGE,
	IMAGE_EXP,
	MEM,
	MEM_EXP,
	FENCE,
	EVENT_POOL,
	EVENT,
	EVENT_EXP,
	MODULE,
	MODULE_BUILD_LOG,
	KERNEL,
	KERNEL_EXP,
	SAMPLER,
	PHYSICAL_MEM,
	VIRTUAL_MEM,
	FABRIC_VERTEX_EXP,
	FABRIC_EDGE_EXP,
	GRAPH,
	EXECUTABLE_GRAPH,
	SLOTS,
};

struct Tables {
	uint32_t version = ZE_API_VERSION_CURRENT;
	uint8_t valid = 1;
	const void *table[SLOTS] = {};
};

/* Positions behind the functions of 1.8.12 in the newer command list table. */
enum NewerList {
	HOST_SYNCHRONIZE = 0,
	LAUNCH_WITH_PARAMETERS = 8,
	LAUNCH_WITH_ARGUMENTS = 9,
	COPY_WITH_PARAMETERS = 10,
	FILL_WITH_PARAMETERS = 11,
	HOST_FUNCTION = 23,
	NEWER_LIST,
};

struct CommandListTable {
	ze_command_list_dditable_t known;
	void *newer[NEWER_LIST];
};

/* {CreateClone, ImmediateAppendCommandLists, ...} */
struct CommandListExpTable {
	void *entry[9];
};

struct EventTable {
	ze_event_dditable_t known;
	/* {QueryKernelTimestampsExt, pool, scopes, CounterBasedCreate, ...} */
	void *newer[10];
};

template <typename F> void *address(F *function)
{
	return reinterpret_cast<void *>(function);
}

template <typename T> const void *filled(ze_result_t (*fill)(ze_api_version_t, T *))
{
	static T table;
	fill(ZE_API_VERSION_CURRENT, &table);
	return &table;
}

const void *command_list()
{
	static CommandListTable t = {};
	zeGetCommandListProcAddrTable(ZE_API_VERSION_CURRENT, &t.known);
	t.newer[HOST_SYNCHRONIZE] = address(zeCommandListHostSynchronize);
	t.newer[LAUNCH_WITH_PARAMETERS] = address(zeCommandListAppendLaunchKernelWithParameters);
	t.newer[LAUNCH_WITH_ARGUMENTS] = address(zeCommandListAppendLaunchKernelWithArguments);
	t.newer[COPY_WITH_PARAMETERS] = address(zeCommandListAppendMemoryCopyWithParameters);
	t.newer[FILL_WITH_PARAMETERS] = address(zeCommandListAppendMemoryFillWithParameters);
	t.newer[HOST_FUNCTION] = address(zeCommandListAppendHostFunction);
	return &t;
}

const void *command_list_exp()
{
	static CommandListExpTable t = {};
	t.entry[1] = address(zeCommandListImmediateAppendCommandListsExp);
	return &t;
}

const void *event()
{
	static EventTable t = {};
	zeGetEventProcAddrTable(ZE_API_VERSION_CURRENT, &t.known);
	t.newer[4] = address(zeEventCounterBasedCreate);
	return &t;
}

Tables make_tables()
{
	Tables t;
	t.table[GLOBAL] = filled(zeGetGlobalProcAddrTable);
	t.table[DRIVER] = filled(zeGetDriverProcAddrTable);
	t.table[DEVICE] = filled(zeGetDeviceProcAddrTable);
	t.table[CONTEXT] = filled(zeGetContextProcAddrTable);
	t.table[COMMAND_QUEUE] = filled(zeGetCommandQueueProcAddrTable);
	t.table[COMMAND_LIST] = command_list();
	t.table[COMMAND_LIST_EXP] = command_list_exp();
	t.table[MEM] = filled(zeGetMemProcAddrTable);
	t.table[FENCE] = filled(zeGetFenceProcAddrTable);
	t.table[EVENT_POOL] = filled(zeGetEventPoolProcAddrTable);
	t.table[EVENT] = event();
	t.table[EVENT_EXP] = filled(zeGetEventExpProcAddrTable);
	t.table[MODULE] = filled(zeGetModuleProcAddrTable);
	t.table[MODULE_BUILD_LOG] = filled(zeGetModuleBuildLogProcAddrTable);
	t.table[KERNEL] = filled(zeGetKernelProcAddrTable);
	t.table[KERNEL_EXP] = filled(zeGetKernelExpProcAddrTable);
	return t;
}

} // namespace

/* Only the core table has functions; the others are valid and empty. */
void init_dispatch(Handle &handle)
{
	static const Tables core = make_tables();
	static const Tables empty;
	for (auto &table : handle.dispatch)
		table = config.dispatch ? &empty : nullptr;
	if (config.dispatch)
		handle.dispatch[0] = &core;
}

} // namespace vze
