/* Kernels. */
#include "objects.hpp"

#include <algorithm>
#include <cstring>

using namespace vze;

extern "C" {

ze_result_t zeKernelCreate(ze_module_handle_t hModule, const ze_kernel_desc_t *desc,
			   ze_kernel_handle_t *phKernel)
{
	VZE_CALL(zeKernelCreate);
	call.with("module", hModule);
	auto *module = object<Module>(hModule);
	if (module == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	std::string name;
	if (!readable(desc, sizeof(*desc)) || !read_text(desc->pKernelName, name) ||
	    !writable(phKernel, sizeof(*phKernel)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	for (auto &data : module->kernels) {
		if (data->info->name != name)
			continue;
		auto *kernel = new Kernel;
		kernel->module = module;
		kernel->own_immutable = data;
		kernel->immutable = data.get();
		*phKernel = handle_of<ze_kernel_handle_t>(kernel);
		call.with("kernel_handle", *phKernel).with_text("kernel", data->info->name);
		call.with("isa", data->address());
		return call.end(ZE_RESULT_SUCCESS);
	}
	return call.end(ZE_RESULT_ERROR_INVALID_KERNEL_NAME);
}

ze_result_t zeKernelDestroy(ze_kernel_handle_t hKernel)
{
	VZE_CALL(zeKernelDestroy);
	call.with("kernel_handle", hKernel);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	call.with_text("kernel", kernel->immutable->info->name);
	call.keep(kernel->own_immutable);
	delete kernel;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeKernelSetGroupSize(ze_kernel_handle_t hKernel, uint32_t x, uint32_t y, uint32_t z)
{
	VZE_CALL(zeKernelSetGroupSize);
	call.with("kernel_handle", hKernel).with_triple("group_size", x, y, z);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (uint64_t{x} * y > 1024 || uint64_t{x} * y * z > 1024 || x == 0 || y == 0 || z == 0)
		return call.end(ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION);
	const uint32_t size[3] = {x, y, z};
	const auto &required = kernel->immutable->info->required;
	if (required[0] != 0 && !std::equal(size, size + 3, required))
		return call.end(ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION);
	std::copy(size, size + 3, kernel->group_size);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeKernelSuggestGroupSize(ze_kernel_handle_t hKernel, uint32_t globalSizeX, uint32_t,
				     uint32_t, uint32_t *groupSizeX, uint32_t *groupSizeY,
				     uint32_t *groupSizeZ)
{
	VZE_CALL(zeKernelSuggestGroupSize);
	if (object<Kernel>(hKernel) == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(groupSizeX, 4) || !writable(groupSizeY, 4) || !writable(groupSizeZ, 4))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	uint32_t x = 256;
	while (x > 1 && globalSizeX % x != 0)
		x /= 2;
	*groupSizeX = x;
	*groupSizeY = *groupSizeZ = 1;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeKernelSuggestMaxCooperativeGroupCount(ze_kernel_handle_t hKernel, uint32_t *count)
{
	if (object<Kernel>(hKernel) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(count, sizeof(*count)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	*count = 512;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeKernelSetArgumentValue(ze_kernel_handle_t hKernel, uint32_t argIndex, size_t argSize,
				     const void *pArgValue)
{
	VZE_CALL(zeKernelSetArgumentValue);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	/* Null stands for local memory of that size. */
	if (pArgValue != nullptr && !readable(pArgValue, argSize))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	uint32_t args = kernel->immutable->info->args;
	if (args != 0 && argIndex >= args)
		return call.end(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeKernelSetIndirectAccess(ze_kernel_handle_t hKernel,
				      ze_kernel_indirect_access_flags_t flags)
{
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	kernel->indirect_access = flags;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeKernelGetIndirectAccess(ze_kernel_handle_t hKernel,
				      ze_kernel_indirect_access_flags_t *flags)
{
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(flags, sizeof(*flags)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	*flags = kernel->indirect_access;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeKernelSetCacheConfig(ze_kernel_handle_t hKernel, ze_cache_config_flags_t)
{
	return object<Kernel>(hKernel) == nullptr ? ZE_RESULT_ERROR_INVALID_NULL_HANDLE
						  : ZE_RESULT_SUCCESS;
}

ze_result_t zeKernelGetProperties(ze_kernel_handle_t hKernel, ze_kernel_properties_t *properties)
{
	VZE_CALL(zeKernelGetProperties);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(properties, sizeof(*properties)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	const KernelInfo &info = *kernel->immutable->info;
	auto type = properties->stype;
	auto *next = properties->pNext;
	*properties = {};
	properties->stype = type;
	properties->pNext = next;
	properties->numKernelArgs = info.args;
	properties->requiredGroupSizeX = info.required[0];
	properties->requiredGroupSizeY = info.required[1];
	properties->requiredGroupSizeZ = info.required[2];
	properties->maxSubgroupSize = info.simd;
	properties->requiredSubgroupSize = 0;
	properties->maxNumSubgroups = 1024 / std::max(info.simd, 1U);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeKernelGetName(ze_kernel_handle_t hKernel, size_t *pSize, char *pName)
{
	VZE_CALL(zeKernelGetName);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(pSize, sizeof(*pSize)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	const std::string &name = kernel->immutable->info->name;
	if (pName != nullptr) {
		size_t n = std::min(*pSize, name.size() + 1);
		if (!writable(pName, n))
			return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
		memcpy(pName, name.c_str(), n);
	}
	*pSize = name.size() + 1;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zexKernelGetBaseAddress(ze_kernel_handle_t hKernel, uint64_t *base)
{
	VZE_CALL(zexKernelGetBaseAddress);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(base, sizeof(*base)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	*base = kernel->immutable->address();
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeKernelGetBinaryExp(ze_kernel_handle_t hKernel, size_t *pSize, uint8_t *pKernelBinary)
{
	VZE_CALL(zeKernelGetBinaryExp);
	auto *kernel = object<Kernel>(hKernel);
	if (kernel == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(pSize, sizeof(*pSize)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	const KernelImmutableData &data = *kernel->immutable;
	if (pKernelBinary != nullptr) {
		if (*pSize < data.isa_size)
			return call.end(ZE_RESULT_ERROR_INVALID_SIZE);
		if (!writable(pKernelBinary, data.isa_size) || data.isa->cpu == nullptr)
			return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
		memcpy(pKernelBinary, static_cast<uint8_t *>(data.isa->cpu) + data.isa_offset,
		       data.isa_size);
	}
	*pSize = data.isa_size;
	return call.end(ZE_RESULT_SUCCESS);
}
}
