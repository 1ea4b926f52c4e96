/*
 * The objects behind the handles.
 *
 * A handle points to the object's `Handle` base, eight bytes behind the virtual
 * table pointer: first the dispatch tables of newer drivers, then ours.
 */
#ifndef VZE_OBJECTS_HPP
#define VZE_OBJECTS_HPP

#include "blob.hpp"
#include "call.hpp"
#include "engine.hpp"

#include <memory>
#include <mutex>
#include <vector>

namespace vze {

/* What every handle points to. */
struct Handle {
	/* ze_handle_t of newer headers: core, tools, sysman, runtime. */
	const void *dispatch[4];
	/* Tells a live object from anything else. */
	uint64_t magic;
};

/* Fills the dispatch pointers. */
void init_dispatch(Handle &handle);

template <uint64_t MAGIC> struct Object : Handle {
	static constexpr uint64_t TAG = MAGIC;
	Object()
	{
		init_dispatch(*this);
		magic = MAGIC;
	}
	virtual ~Object() { magic = 0; }
	Object(const Object &) = delete;
	Object &operator=(const Object &) = delete;
};

/* The object of a handle; null for null, dead and wrong ones. */
template <typename T> T *object(const void *handle)
{
	auto *base = static_cast<const Handle *>(handle);
	if (!readable(base, sizeof(Handle)) || base->magic != T::TAG)
		return nullptr;
	return static_cast<T *>(const_cast<Handle *>(base));
}

template <typename H, typename T> H handle_of(T *object)
{
	return reinterpret_cast<H>(static_cast<Handle *>(object));
}

struct Driver : Object<0x767a652d64726976> {};

struct Device : Object<0x767a652d64657669> {
	/* Index of the root device; its sub-devices have the same. */
	uint32_t index = 0;
	/* -1: the root device. */
	int32_t sub = -1;
	Device *parent = nullptr;
	std::vector<Device *> children;
};

/* Allocations, by address. Shared by all contexts, as the address space is. */
struct Allocation {
	uint64_t base = 0;
	uint64_t size = 0;
	ze_memory_type_t type = ZE_MEMORY_TYPE_UNKNOWN;
	Device *device = nullptr;
	uint64_t id = 0;
};
/* The allocation that an address lies in. */
bool find_allocation(const void *address, Allocation &out);

struct Context : Object<0x767a652d636f6e74> {
	Driver *driver = nullptr;
};

/* Machine code on the device, and a copy that the CPU can see. */
struct IsaAllocation {
	uint64_t gpu_address = 0;
	uint64_t size = 0;
	void *cpu = nullptr;
	explicit IsaAllocation(uint64_t size);
	~IsaAllocation();
	IsaAllocation(const IsaAllocation &) = delete;
	IsaAllocation &operator=(const IsaAllocation &) = delete;
};

/* What is known about a kernel for as long as its module lives. The way from a
 * kernel handle to its name is object -> immutable -> info -> name, as long as
 * in real drivers, with a std::string at its end. Its address is behind
 * object -> immutable -> isa -> gpu_address; where kernels share an allocation,
 * `isa_offset` is added, as in drivers since 2023. */
struct KernelImmutableData {
	Device *device = nullptr;
	const KernelInfo *info = nullptr;
	IsaAllocation *isa = nullptr;
	uint64_t isa_offset = 0;
	uint64_t isa_size = 0;
	Counter *launches = nullptr;
	/* Owners of the above. */
	std::shared_ptr<const KernelInfo> own_info;
	std::shared_ptr<IsaAllocation> own_isa;
	/* Launches so far: which of `turns` is next. */
	mutable std::atomic<uint64_t> turn{0};

	uint64_t address() const { return isa->gpu_address + isa_offset; }
};

struct Module : Object<0x767a652d6d6f6475> {
	Device *device = nullptr;
	std::vector<uint8_t> binary;
	std::vector<std::shared_ptr<KernelImmutableData>> kernels;
};

struct Kernel : Object<0x767a652d6b65726e> {
	Module *module = nullptr;
	uint32_t group_size[3] = {1, 1, 1};
	uint32_t indirect_access = 0;
	const KernelImmutableData *immutable = nullptr;
	std::shared_ptr<const KernelImmutableData> own_immutable;
};

struct EventPool : Object<0x767a652d65706f6f> {
	uint32_t flags = 0;
	uint32_t count = 0;
	/* Timestamp packets of its events, 64 bytes each. */
	std::shared_ptr<uint8_t> packets;
};

struct Event : Object<0x767a652d6576656e> {
	bool timestamps = false;
	uint32_t device = 0;
	std::shared_ptr<EventState> state;
};

struct Fence : Object<0x767a652d66656e63> {
	std::shared_ptr<EventState> state;
};

struct Queue : Object<0x767a652d71756575> {
	Device *device = nullptr;
	bool synchronous = false;
	std::shared_ptr<Stream> stream;
};

struct CommandList : Object<0x767a652d6c697374> {
	Device *device = nullptr;
	uint32_t ordinal = 0;
	bool in_order = false;
	bool closed = false;
	bool synchronous = false;
	/* Immediate lists have a stream of their own, the others none. */
	std::shared_ptr<Stream> stream;
	std::mutex lock;
	std::vector<Command> commands;
};

/* Command queue groups of every device. */
constexpr uint32_t GROUP_COMPUTE = 0;
constexpr uint32_t GROUP_COPY = 1;
constexpr uint32_t GROUPS = 2;
constexpr uint32_t GROUP_QUEUES[GROUPS] = {4, 2};

/* The one driver and its devices. */
Driver *the_driver();
const std::vector<Device *> &root_devices();

} // namespace vze

#endif
