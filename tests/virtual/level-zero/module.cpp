/* Modules and their build logs. */
#include "objects.hpp"

#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unordered_map>

namespace vze {

namespace {

struct BuildLog : Object<0x767a652d626c6f67> {
	std::string text;
};

constexpr size_t MAX_BLOB = 1 << 30;
constexpr uint64_t PAGE = 4096;

/* Device addresses are given out upwards and never again: a kernel's address
 * belongs to one kernel of its process. */
uint64_t take_isa(uint64_t size)
{
	static std::atomic<uint64_t> used{PAGE};
	return config.isa_base + used.fetch_add((size + PAGE - 1) / PAGE * PAGE);
}

/* Launches by kernel name; counters outlive their modules. */
Counter *launch_counter(const std::string &name)
{
	static auto *lock = new std::mutex;
	static auto *all = new std::unordered_map<std::string, Counter *>;
	std::lock_guard<std::mutex> guard(*lock);
	Counter *&counter = (*all)[name];
	if (counter == nullptr)
		counter = new Counter("launches", strdup(name.c_str()));
	return counter;
}

std::shared_ptr<KernelImmutableData> make_kernel(Module &module, KernelInfo info)
{
	auto data = std::make_shared<KernelImmutableData>();
	data->device = module.device;
	data->launches = launch_counter(info.name);
	auto isa = std::make_unique<IsaAllocation>();
	isa->size = info.isa_size;
	isa->gpu_address = take_isa(info.isa_size);
	void *cpu = mmap(nullptr, info.isa_size + 1, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (cpu != MAP_FAILED) {
		isa->cpu = cpu;
		if (info.code_size > 0)
			memcpy(cpu, &module.binary[info.code_at], info.code_size);
	}
	data->own_isa = std::move(isa);
	data->own_info = std::make_unique<KernelInfo>(std::move(info));
	data->isa = data->own_isa.get();
	data->info = data->own_info.get();
	return data;
}

/* The input of a module: the first one where there are several. */
struct Input {
	const uint8_t *bytes = nullptr;
	size_t size = 0;
	uint32_t count = 1;
};

bool find_input(const ze_module_desc_t &desc, Input &out)
{
	out.bytes = desc.pInputModule;
	out.size = desc.inputSize;
	auto *next = static_cast<const ze_module_program_exp_desc_t *>(desc.pNext);
	if (next != nullptr) {
		if (!readable(next, sizeof(*next)))
			return false;
		if (next->stype == ZE_STRUCTURE_TYPE_MODULE_PROGRAM_EXP_DESC && next->count > 0) {
			out.count = next->count;
			if (!readable(next->inputSizes, sizeof(size_t)) ||
			    !readable(next->pInputModules, sizeof(void *)))
				return false;
			out.bytes = next->pInputModules[0];
			out.size = next->inputSizes[0];
		}
	}
	return out.size > 0 && out.size <= MAX_BLOB && readable(out.bytes, out.size);
}

/* SPIR-V becomes the zebin that a compiler would make of it. */
void compile(Module &module, std::vector<KernelInfo> &kernels)
{
	module.binary = write_zebin(kernels);
	kernels.clear();
	parse_blob(BlobKind::Native, module.binary.data(), module.binary.size(), kernels);
}

ze_result_t build(Module &module, const ze_module_desc_t &desc, std::string &log)
{
	Input input;
	if (!find_input(desc, input))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	module.binary.assign(input.bytes, input.bytes + input.size);
	auto kind = desc.format == ZE_MODULE_FORMAT_NATIVE ? BlobKind::Native : BlobKind::Spirv;
	std::vector<KernelInfo> kernels;
	log = parse_blob(kind, module.binary.data(), module.binary.size(), kernels);
	if (!log.empty())
		return kind == BlobKind::Native ? ZE_RESULT_ERROR_INVALID_NATIVE_BINARY
						: ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
	if (kind == BlobKind::Spirv)
		compile(module, kernels);
	for (KernelInfo &info : kernels)
		module.kernels.push_back(make_kernel(module, std::move(info)));
	return ZE_RESULT_SUCCESS;
}

/* Two-call convention for a block of bytes. */
ze_result_t give_bytes(const void *bytes, size_t size, size_t *pSize, void *out)
{
	if (!writable(pSize, sizeof(*pSize)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	if (out != nullptr) {
		if (*pSize < size)
			return ZE_RESULT_ERROR_INVALID_SIZE;
		if (!writable(out, size))
			return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
		memcpy(out, bytes, size);
	}
	*pSize = size;
	return ZE_RESULT_SUCCESS;
}

} // namespace

KernelImmutableData::~KernelImmutableData()
{
	if (own_isa && own_isa->cpu != nullptr)
		munmap(own_isa->cpu, own_isa->size + 1);
}

} // namespace vze

using namespace vze;

extern "C" {

ze_result_t zeModuleCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
			   const ze_module_desc_t *desc, ze_module_handle_t *phModule,
			   ze_module_build_log_handle_t *phBuildLog)
{
	VZE_CALL(zeModuleCreate);
	auto *device = object<Device>(hDevice);
	call.with("context", hContext).with("device_handle", hDevice);
	if (object<Context>(hContext) == nullptr || device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!readable(desc, sizeof(*desc)) || !writable(phModule, sizeof(*phModule)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	auto module = std::make_unique<Module>();
	module->device = device;
	auto log = std::make_unique<BuildLog>();
	ze_result_t result = build(*module, *desc, log->text);
	call.with("format", desc->format).with("size", desc->inputSize);
	call.with("kernels", module->kernels.size());
	if (phBuildLog != nullptr && writable(phBuildLog, sizeof(*phBuildLog)))
		*phBuildLog = handle_of<ze_module_build_log_handle_t>(log.release());
	if (result != ZE_RESULT_SUCCESS)
		return call.end(result);
	*phModule = handle_of<ze_module_handle_t>(module.release());
	call.with("module", *phModule);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeModuleDestroy(ze_module_handle_t hModule)
{
	VZE_CALL(zeModuleDestroy);
	call.with("module", hModule);
	auto *module = object<Module>(hModule);
	if (module == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	delete module;
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeModuleDynamicLink(uint32_t numModules, ze_module_handle_t *phModules,
				ze_module_build_log_handle_t *phLinkLog)
{
	VZE_CALL(zeModuleDynamicLink);
	call.with("modules", numModules);
	if (!readable(phModules, numModules * sizeof(*phModules)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	for (uint32_t i = 0; i < numModules; i++)
		if (object<Module>(phModules[i]) == nullptr)
			return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (phLinkLog != nullptr && writable(phLinkLog, sizeof(*phLinkLog)))
		*phLinkLog = handle_of<ze_module_build_log_handle_t>(new BuildLog);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeModuleGetNativeBinary(ze_module_handle_t hModule, size_t *pSize,
				    uint8_t *pModuleNativeBinary)
{
	VZE_CALL(zeModuleGetNativeBinary);
	auto *module = object<Module>(hModule);
	if (module == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	return call.end(give_bytes(module->binary.data(), module->binary.size(), pSize,
				   pModuleNativeBinary));
}

/* The debug ELF is the module itself, not relocated. */
ze_result_t zetModuleGetDebugInfo(zet_module_handle_t hModule, zet_module_debug_info_format_t,
				  size_t *pSize, uint8_t *pDebugInfo)
{
	VZE_CALL(zetModuleGetDebugInfo);
	auto *module = object<Module>(hModule);
	if (module == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	return call.end(give_bytes(module->binary.data(), module->binary.size(), pSize, pDebugInfo));
}

ze_result_t zeModuleGetKernelNames(ze_module_handle_t hModule, uint32_t *pCount,
				   const char **pNames)
{
	VZE_CALL(zeModuleGetKernelNames);
	auto *module = object<Module>(hModule);
	if (module == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(pCount, sizeof(*pCount)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	auto all = static_cast<uint32_t>(module->kernels.size());
	if (*pCount == 0 || pNames == nullptr) {
		*pCount = all;
		return call.end(ZE_RESULT_SUCCESS);
	}
	*pCount = *pCount < all ? *pCount : all;
	if (!writable(pNames, *pCount * sizeof(*pNames)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	for (uint32_t i = 0; i < *pCount; i++)
		pNames[i] = module->kernels[i]->info->name.c_str();
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeModuleGetProperties(ze_module_handle_t hModule, ze_module_properties_t *properties)
{
	if (object<Module>(hModule) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	if (!writable(properties, sizeof(*properties)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	properties->flags = 0;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeModuleGetFunctionPointer(ze_module_handle_t hModule, const char *pFunctionName,
				       void **pfnFunction)
{
	VZE_CALL(zeModuleGetFunctionPointer);
	auto *module = object<Module>(hModule);
	std::string name;
	if (module == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!read_text(pFunctionName, name) || !writable(pfnFunction, sizeof(*pfnFunction)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	for (auto &kernel : module->kernels) {
		if (kernel->info->name == name) {
			*pfnFunction = reinterpret_cast<void *>(kernel->isa->gpu_address);
			return call.end(ZE_RESULT_SUCCESS);
		}
	}
	return call.end(ZE_RESULT_ERROR_INVALID_FUNCTION_NAME);
}

ze_result_t zeModuleBuildLogDestroy(ze_module_build_log_handle_t hLog)
{
	auto *log = object<BuildLog>(hLog);
	if (log == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	delete log;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeModuleBuildLogGetString(ze_module_build_log_handle_t hLog, size_t *pSize,
				      char *pBuildLog)
{
	auto *log = object<BuildLog>(hLog);
	if (log == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	return give_bytes(log->text.c_str(), log->text.size() + 1, pSize, pBuildLog);
}
}
