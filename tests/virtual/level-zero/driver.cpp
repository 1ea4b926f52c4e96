/* Loading, the driver object, contexts and extension functions. */
#include "objects.hpp"
#include "stalls.hpp"

#include <cstring>
#include <pthread.h>

namespace vze {

namespace {

void before_fork()
{
	engines_before_fork();
	truth_before_fork();
}

void after_fork(bool child)
{
	truth_after_fork(child);
	engines_after_fork(child);
	if (child)
		stalls_after_fork();
}

__attribute__((constructor)) void load()
{
	read_config();
	truth_open();
	pthread_atfork(
		before_fork, [] { after_fork(false); }, [] { after_fork(true); });
}

__attribute__((destructor)) void unload()
{
	devices_end = now_ns();
	stop_engines();
	stalls_stop();
	truth_flush();
}

struct Extension {
	const char *name;
	void *function;
};

#define EXTENSION(function) {#function, reinterpret_cast<void *>(function)}
const Extension EXTENSIONS[] = {
	EXTENSION(zeInitDrivers),
	EXTENSION(zeCommandListAppendLaunchKernelWithArguments),
	EXTENSION(zeCommandListAppendLaunchKernelWithParameters),
	EXTENSION(zeCommandListImmediateAppendCommandListsExp),
	EXTENSION(zeCommandListHostSynchronize),
	EXTENSION(zeDeviceSynchronize),
	EXTENSION(zeCommandListAppendMemoryCopyWithParameters),
	EXTENSION(zexCommandListAppendMemoryCopyWithParameters),
	EXTENSION(zeCommandListAppendMemoryFillWithParameters),
	EXTENSION(zeCommandListAppendHostFunction),
	EXTENSION(zeEventCounterBasedCreate),
	EXTENSION(zexCounterBasedEventCreate2),
	EXTENSION(zexKernelGetBaseAddress),
	EXTENSION(zeKernelGetBinaryExp),
};

} // namespace

Driver *the_driver()
{
	static Driver *driver = new Driver;
	return driver;
}

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeInit(ze_init_flags_t flags)
{
	VZE_CALL(zeInit);
	call.with("flags", flags);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeInitDrivers(uint32_t *pCount, ze_driver_handle_t *phDrivers, vze_init_desc_t *desc)
{
	VZE_CALL(zeInitDrivers);
	if (!writable(pCount, sizeof(*pCount)) || !readable(desc, sizeof(*desc)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (*pCount > 0 && phDrivers != nullptr) {
		if (!writable(phDrivers, sizeof(*phDrivers)))
			return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
		phDrivers[0] = handle_of<ze_driver_handle_t>(the_driver());
	}
	*pCount = 1;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeDriverGet(uint32_t *pCount, ze_driver_handle_t *phDrivers)
{
	VZE_CALL(zeDriverGet);
	if (!writable(pCount, sizeof(*pCount)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (*pCount > 0 && phDrivers != nullptr) {
		if (!writable(phDrivers, sizeof(*phDrivers)))
			return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
		phDrivers[0] = handle_of<ze_driver_handle_t>(the_driver());
	}
	*pCount = 1;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeDriverGetApiVersion(ze_driver_handle_t hDriver, ze_api_version_t *version)
{
	if (object<Driver>(hDriver) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(version, sizeof(*version)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	*version = ZE_API_VERSION_CURRENT;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetProperties(ze_driver_handle_t hDriver, ze_driver_properties_t *properties)
{
	if (object<Driver>(hDriver) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(properties, sizeof(*properties)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	memset(&properties->uuid, 0, sizeof(properties->uuid));
	memcpy(properties->uuid.id, "aiprof-vze", 10);
	properties->driverVersion = 1;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetIpcProperties(ze_driver_handle_t hDriver,
				     ze_driver_ipc_properties_t *properties)
{
	if (object<Driver>(hDriver) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(properties, sizeof(*properties)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	properties->flags = 0;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetExtensionProperties(ze_driver_handle_t hDriver, uint32_t *pCount,
					   ze_driver_extension_properties_t *)
{
	if (object<Driver>(hDriver) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(pCount, sizeof(*pCount)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	*pCount = 0;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDriverGetExtensionFunctionAddress(ze_driver_handle_t hDriver, const char *name,
						void **ppFunctionAddress)
{
	VZE_CALL(zeDriverGetExtensionFunctionAddress);
	std::string text;
	if (object<Driver>(hDriver) == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!read_text(name, text) || !writable(ppFunctionAddress, sizeof(*ppFunctionAddress)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	for (const Extension &extension : EXTENSIONS) {
		if (text == extension.name) {
			*ppFunctionAddress = extension.function;
			call.with_text("name", extension.name).with("address", extension.function);
			return call.end(ZE_RESULT_SUCCESS);
		}
	}
	return call.end(ZE_RESULT_ERROR_INVALID_ARGUMENT);
}

ze_result_t zeContextCreateEx(ze_driver_handle_t hDriver, const ze_context_desc_t *desc, uint32_t,
			      ze_device_handle_t *, ze_context_handle_t *phContext)
{
	VZE_CALL(zeContextCreateEx);
	auto *driver = object<Driver>(hDriver);
	if (driver == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phContext, sizeof(*phContext)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	auto *context = new Context;
	context->driver = driver;
	*phContext = handle_of<ze_context_handle_t>(context);
	call.with("context", *phContext);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeContextCreate(ze_driver_handle_t hDriver, const ze_context_desc_t *desc,
			    ze_context_handle_t *phContext)
{
	VZE_CALL(zeContextCreate);
	auto *driver = object<Driver>(hDriver);
	if (driver == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phContext, sizeof(*phContext)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	auto *context = new Context;
	context->driver = driver;
	*phContext = handle_of<ze_context_handle_t>(context);
	call.with("context", *phContext);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeContextDestroy(ze_context_handle_t hContext)
{
	VZE_CALL(zeContextDestroy);
	call.with("context", hContext);
	auto *context = object<Context>(hContext);
	if (context == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	delete context;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeContextGetStatus(ze_context_handle_t hContext)
{
	return object<Context>(hContext) == nullptr ? ZE_RESULT_ERROR_INVALID_NULL_HANDLE
						    : ZE_RESULT_SUCCESS;
}

ze_result_t zeContextMakeMemoryResident(ze_context_handle_t hContext, ze_device_handle_t, void *,
					size_t)
{
	return zeContextGetStatus(hContext);
}

ze_result_t zeContextEvictMemory(ze_context_handle_t hContext, ze_device_handle_t, void *, size_t)
{
	return zeContextGetStatus(hContext);
}

ze_result_t zeContextSystemBarrier(ze_context_handle_t hContext, ze_device_handle_t)
{
	return zeContextGetStatus(hContext);
}
}
