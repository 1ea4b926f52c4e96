/* USM allocations: all of them plain memory of this process. */
#include "objects.hpp"

#include <map>
#include <sys/mman.h>

namespace vze {

namespace {

struct Map {
	std::mutex lock;
	std::map<uint64_t, Allocation> all;
	uint64_t next_id = 1;
};

Map &map()
{
	static Map *m = new Map;
	return *m;
}

constexpr uint64_t PAGE = 4096;
constexpr uint64_t MAX_SIZE = 1ULL << 36;

uint64_t pages(uint64_t size)
{
	return (size + PAGE - 1) / PAGE * PAGE;
}

ze_result_t allocate(Call &call, ze_context_handle_t hContext, Device *device,
		     ze_memory_type_t type, size_t size, size_t alignment, void **pptr)
{
	call.with("bytes", size).with("context", hContext);
	if (object<Context>(hContext) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(pptr, sizeof(*pptr)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	if (size == 0 || size > MAX_SIZE)
		return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
	if (alignment > PAGE || (alignment & (alignment - 1)) != 0)
		return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
	void *memory = mmap(nullptr, pages(size), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
	auto base = reinterpret_cast<uint64_t>(memory);
	{
		std::lock_guard<std::mutex> guard(map().lock);
		map().all[base] = {base, size, type, device, map().next_id++};
	}
	*pptr = memory;
	call.with("address", memory);
	return ZE_RESULT_SUCCESS;
}

ze_result_t release(Call &call, ze_context_handle_t hContext, void *ptr)
{
	call.with("address", ptr).with("context", hContext);
	if (object<Context>(hContext) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	auto base = reinterpret_cast<uint64_t>(ptr);
	std::lock_guard<std::mutex> guard(map().lock);
	auto found = map().all.find(base);
	if (found == map().all.end())
		return ZE_RESULT_ERROR_INVALID_ARGUMENT;
	call.with("bytes", found->second.size);
	munmap(ptr, pages(found->second.size));
	map().all.erase(found);
	return ZE_RESULT_SUCCESS;
}

} // namespace

bool find_allocation(const void *address, Allocation &out)
{
	auto at = reinterpret_cast<uint64_t>(address);
	std::lock_guard<std::mutex> guard(map().lock);
	auto above = map().all.upper_bound(at);
	if (above == map().all.begin())
		return false;
	out = std::prev(above)->second;
	return at - out.base < out.size;
}

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeMemAllocDevice(ze_context_handle_t hContext, const ze_device_mem_alloc_desc_t *desc,
			     size_t size, size_t alignment, ze_device_handle_t hDevice, void **pptr)
{
	VZE_CALL(zeMemAllocDevice);
	auto *device = object<Device>(hDevice);
	if (device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	return call.end(allocate(call, hContext, device, ZE_MEMORY_TYPE_DEVICE, size, alignment, pptr));
}

ze_result_t zeMemAllocHost(ze_context_handle_t hContext, const ze_host_mem_alloc_desc_t *desc,
			   size_t size, size_t alignment, void **pptr)
{
	VZE_CALL(zeMemAllocHost);
	if (!readable(desc, sizeof(*desc)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	return call.end(allocate(call, hContext, nullptr, ZE_MEMORY_TYPE_HOST, size, alignment, pptr));
}

ze_result_t zeMemAllocShared(ze_context_handle_t hContext,
			     const ze_device_mem_alloc_desc_t *device_desc,
			     const ze_host_mem_alloc_desc_t *host_desc, size_t size,
			     size_t alignment, ze_device_handle_t hDevice, void **pptr)
{
	VZE_CALL(zeMemAllocShared);
	if (!readable(device_desc, sizeof(*device_desc)) || !readable(host_desc, sizeof(*host_desc)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	auto *device = hDevice == nullptr ? nullptr : object<Device>(hDevice);
	return call.end(allocate(call, hContext, device, ZE_MEMORY_TYPE_SHARED, size, alignment, pptr));
}

ze_result_t zeMemFree(ze_context_handle_t hContext, void *ptr)
{
	VZE_CALL(zeMemFree);
	return call.end(release(call, hContext, ptr));
}

ze_result_t zeMemFreeExt(ze_context_handle_t hContext, const ze_memory_free_ext_desc_t *,
			 void *ptr)
{
	VZE_CALL(zeMemFreeExt);
	return call.end(release(call, hContext, ptr));
}

ze_result_t zeMemGetAllocProperties(ze_context_handle_t hContext, const void *ptr,
				    ze_memory_allocation_properties_t *properties,
				    ze_device_handle_t *phDevice)
{
	VZE_CALL(zeMemGetAllocProperties);
	if (object<Context>(hContext) == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(properties, sizeof(*properties)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	Allocation allocation;
	bool known = find_allocation(ptr, allocation);
	properties->type = known ? allocation.type : ZE_MEMORY_TYPE_UNKNOWN;
	properties->id = known ? allocation.id : 0;
	properties->pageSize = known ? PAGE : 0;
	if (phDevice != nullptr && writable(phDevice, sizeof(*phDevice)))
		*phDevice = known && allocation.device != nullptr
				    ? handle_of<ze_device_handle_t>(allocation.device)
				    : nullptr;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeMemGetAddressRange(ze_context_handle_t hContext, const void *ptr, void **pBase,
				 size_t *pSize)
{
	VZE_CALL(zeMemGetAddressRange);
	Allocation allocation;
	if (object<Context>(hContext) == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!find_allocation(ptr, allocation))
		return call.end(ZE_RESULT_ERROR_INVALID_ARGUMENT);
	if (pBase != nullptr && writable(pBase, sizeof(*pBase)))
		*pBase = reinterpret_cast<void *>(allocation.base);
	if (pSize != nullptr && writable(pSize, sizeof(*pSize)))
		*pSize = allocation.size;
	return call.end(ZE_RESULT_SUCCESS);
}
}
