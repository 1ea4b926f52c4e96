/*
 * The part of the AIU runtime's C++ interface that programs call, by names
 * that mangle as the real ones do. Whether the parameters of the real
 * launches are const is not public: -DFLEX_CONST=const builds the other kind.
 * Nor are the offsets of their fields, which changed between builds:
 * -DFLEX_OTHER_ABI moves them, and what reads kernel names must notice.
 */
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#define FLEX_EXPORT __attribute__((visibility("default")))
#ifndef FLEX_CONST
#define FLEX_CONST
#endif

namespace flex {

enum class PlacementPolicy { Bind, Spread };
enum class MemoryType { Tensor, Program };
enum class RuntimeStreamMode { StrictOrdering, OpOrdering };
enum class Priority { Normal, High };

struct LogicalAddress {
	uint64_t region_id, offset;
};

struct Chunk {
	LogicalAddress address;
	uint64_t size;
	uint32_t domain;
};

class FLEX_EXPORT CompositeAddress {
      public:
	std::vector<Chunk> chunks;
	uint64_t total_size() const;
};

class FLEX_EXPORT AllocationDirective {
      public:
	AllocationDirective(PlacementPolicy policy, std::vector<unsigned int> domains,
			    std::optional<CompositeAddress> near, MemoryType type);
	PlacementPolicy policy;
	std::vector<unsigned int> domains;
	std::optional<CompositeAddress> near;
	MemoryType type;
};

class FLEX_EXPORT FlexAllocator {
      public:
	CompositeAddress allocate(uint64_t bytes, AllocationDirective directive);
	void deallocate(const CompositeAddress &address);
};

struct FLEX_EXPORT OperationParams {
	virtual ~OperationParams();
	bool pipeline_barrier = false;
	void (*callback)(void *) = nullptr;
	void *callback_user_data = nullptr;
#ifdef FLEX_OTHER_ABI
	uint64_t more[4] = {};
#endif
};

struct FLEX_EXPORT ComputeParams : OperationParams {
	const CompositeAddress *device_address = nullptr;
	std::vector<CompositeAddress> tensor_allocs;
	std::string kernel_name;
	uint64_t bootstrap_offset = 0;
	std::vector<uint64_t> tensor_byte_offsets;
};

struct FLEX_EXPORT DmaParams : OperationParams {
	DmaParams(void *hmva, uint64_t size, bool to_device, const CompositeAddress *device);
	void *hmva;
	uint64_t size;
	bool to_device;
	const CompositeAddress *device;
	std::shared_ptr<void> dci;
	std::string op_name;
	uint64_t iova = 0;
	bool use_compute_pipeline = false;
};

struct FLEX_EXPORT HostCallbackParams : OperationParams {};

struct FLEX_EXPORT P2PParams : OperationParams {
	uint32_t peer = 0;
	uint64_t size = 0;
	const CompositeAddress *device = nullptr;
	std::string group;
};

struct FLEX_EXPORT FillParams : OperationParams {
	const CompositeAddress *device = nullptr;
	uint64_t size = 0;
	uint8_t value = 0;
};

class FLEX_EXPORT RuntimeStream {
      public:
	RuntimeStream(RuntimeStreamMode mode, Priority priority);
	int launchOperationCompute(FLEX_CONST ComputeParams *params);
	int launchOperationH2D(FLEX_CONST DmaParams *params);
	int launchOperationD2H(FLEX_CONST DmaParams *params);
	int launchOperationHostCallback(FLEX_CONST HostCallbackParams *params);
	int launchOperationP2PRdmaSend(FLEX_CONST P2PParams *params);
	int launchOperationP2PRdmaWait(FLEX_CONST P2PParams *params);
	int launchOperationFill(FLEX_CONST FillParams *params);
	void synchronize();
	bool query();
	uint64_t id() const;

      private:
	uint64_t id_;
	RuntimeStreamMode mode_;
	Priority priority_;
};

class FLEX_EXPORT RuntimeContext {
      public:
	explicit RuntimeContext(int logical_device);
	FlexAllocator *getAllocator();
	std::shared_ptr<RuntimeStream> createStream(RuntimeStreamMode mode, Priority priority);
	std::shared_ptr<RuntimeStream> getDefaultStream();
	int getDeviceHandle() const;

      private:
	int device_;
	FlexAllocator allocator_;
	std::shared_ptr<RuntimeStream> default_;
};

class FLEX_EXPORT RuntimeEntry {
      public:
	static Priority toPriority(int level);
};

FLEX_EXPORT int initializeRuntime(std::shared_ptr<RuntimeContext> *runtime, int logical_device);
FLEX_EXPORT std::shared_ptr<RuntimeContext> getFlexRuntimeContext();
FLEX_EXPORT int getNumDevices();

} // namespace flex
