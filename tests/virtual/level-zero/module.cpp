/* Modules and their build logs. */
#include "objects.hpp"
#include "usdt.hpp"

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

/* Behind each kernel of a shared allocation: hardware reads ahead. */
constexpr uint64_t PADDING = 512;

uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Device addresses for code, counted from the instruction base address. They are
 * given out upwards; with VZE_ISA_REUSE the lowest free ones first, else each
 * once. */
class IsaSpace {
      public:
	uint64_t take(uint64_t size)
	{
		std::lock_guard<std::mutex> guard(lock_);
		for (auto it = free_.begin(); it != free_.end(); ++it) {
			auto [at, room] = *it;
			if (room < size)
				continue;
			free_.erase(it);
			if (room > size)
				free_[at + size] = room - size;
			return at;
		}
		uint64_t at = used_;
		used_ += size;
		return at;
	}
	void give(uint64_t at, uint64_t size)
	{
		std::lock_guard<std::mutex> guard(lock_);
		if (!config.isa_reuse)
			return;
		auto next = free_.emplace(at, size).first;
		auto after = std::next(next);
		if (after != free_.end() && at + size == after->first) {
			next->second += after->second;
			free_.erase(after);
		}
		if (next == free_.begin())
			return;
		auto before = std::prev(next);
		if (before->first + before->second == at) {
			before->second += next->second;
			free_.erase(next);
		}
	}

      private:
	std::mutex lock_;
	std::map<uint64_t, uint64_t> free_;
	uint64_t used_ = PAGE;
};

IsaSpace &isa_space()
{
	static auto *space = new IsaSpace;
	return *space;
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

/* A kernel whose code lies in an allocation. */
std::shared_ptr<KernelImmutableData> make_kernel(Module &module, KernelInfo info,
						 std::shared_ptr<IsaAllocation> isa,
						 uint64_t offset)
{
	auto data = std::make_shared<KernelImmutableData>();
	data->device = module.device;
	data->launches = launch_counter(info.name);
	data->isa_offset = offset;
	data->isa_size = info.isa_size;
	if (isa->cpu != nullptr && info.code_size > 0)
		memcpy(static_cast<uint8_t *>(isa->cpu) + offset, &module.binary[info.code_at],
		       info.code_size);
	data->own_isa = std::move(isa);
	data->own_info = std::make_shared<KernelInfo>(std::move(info));
	data->isa = data->own_isa.get();
	data->info = data->own_info.get();
	return data;
}

/* One allocation for each kernel, or one for all. */
void make_kernels(Module &module, std::vector<KernelInfo> &kernels)
{
	std::shared_ptr<IsaAllocation> pool;
	if (config.isa_pool) {
		uint64_t size = 0;
		for (const KernelInfo &info : kernels)
			size += round_up(info.isa_size + PADDING, 64);
		pool = std::make_shared<IsaAllocation>(size);
	}
	uint64_t offset = 0;
	for (KernelInfo &info : kernels) {
		uint64_t size = info.isa_size;
		auto isa = pool ? pool : std::make_shared<IsaAllocation>(size);
		module.kernels.push_back(make_kernel(module, std::move(info), isa, offset));
		if (pool)
			offset += round_up(size + PADDING, 64);
	}
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
	if (*config.schedule_path != '\0')
		log = apply_schedule(config.schedule_path, kernels);
	if (!log.empty())
		return ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
	make_kernels(module, kernels);
	usdt_compile(module.binary);
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

IsaAllocation::IsaAllocation(uint64_t bytes) : size(bytes)
{
	gpu_address = config.isa_base + isa_space().take(round_up(size, PAGE));
	void *memory =
		mmap(nullptr, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory != MAP_FAILED)
		cpu = memory;
}

IsaAllocation::~IsaAllocation()
{
	if (cpu != nullptr)
		munmap(cpu, size + 1);
	isa_space().give(gpu_address - config.isa_base, round_up(size, PAGE));
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
			*pfnFunction = reinterpret_cast<void *>(kernel->address());
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
