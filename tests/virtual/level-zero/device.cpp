/* Devices, sub-devices and the properties that they report. */
#include "objects.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace vze {

namespace {

std::vector<Device *> make_devices()
{
	std::vector<Device *> all;
	for (uint32_t i = 0; i < config.devices; i++) {
		auto *device = new Device;
		device->index = i;
		for (uint32_t s = 0; s < config.subdevices; s++) {
			auto *child = new Device;
			child->index = i;
			child->sub = static_cast<int32_t>(s);
			child->parent = device;
			device->children.push_back(child);
		}
		all.push_back(device);
	}
	return all;
}

ze_result_t give_devices(const std::vector<Device *> &all, uint32_t *pCount,
			 ze_device_handle_t *phDevices)
{
	if (!writable(pCount, sizeof(*pCount)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	auto have = static_cast<uint32_t>(all.size());
	if (*pCount == 0 || phDevices == nullptr) {
		*pCount = have;
		return ZE_RESULT_SUCCESS;
	}
	*pCount = std::min(*pCount, have);
	if (!writable(phDevices, *pCount * sizeof(*phDevices)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	for (uint32_t i = 0; i < *pCount; i++)
		phDevices[i] = handle_of<ze_device_handle_t>(all[i]);
	return ZE_RESULT_SUCCESS;
}

void fill_properties(const Device &device, ze_device_properties_t &p)
{
	auto type = p.stype;
	auto *next = p.pNext;
	p = {};
	p.stype = type;
	p.pNext = next;
	p.type = ZE_DEVICE_TYPE_GPU;
	p.vendorId = 0x8086;
	p.deviceId = 0x0bd5;
	p.flags = device.sub >= 0 ? ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE : 0;
	p.subdeviceId = device.sub >= 0 ? static_cast<uint32_t>(device.sub) : 0;
	p.coreClockRate = 1600;
	p.maxMemAllocSize = 1ULL << 32;
	p.maxHardwareContexts = 1024;
	p.numThreadsPerEU = 8;
	p.physicalEUSimdWidth = 16;
	p.numEUsPerSubslice = 8;
	p.numSubslicesPerSlice = 16;
	p.numSlices = 4;
	/* The older structure type has Hz, the newer one ns per tick. */
	p.timerResolution = type == ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2
				    ? config.clock_hz
				    : 1000000000 / config.clock_hz;
	p.timestampValidBits = config.timestamp_bits;
	p.kernelTimestampValidBits = config.clock_bits;
	memcpy(p.uuid.id, "vze", 3);
	p.uuid.id[14] = static_cast<uint8_t>(device.index);
	p.uuid.id[15] = static_cast<uint8_t>(device.sub + 1);
	snprintf(p.name, sizeof(p.name), "Virtual accelerator %u", device.index);
}

} // namespace

const std::vector<Device *> &root_devices()
{
	static auto *all = new std::vector<Device *>(make_devices());
	return *all;
}

} // namespace vze

using namespace vze;

/* The checks with which every query of a device begins. */
#define DEVICE_QUERY(device, out)                                                                  \
	auto *device = object<Device>(hDevice);                                                    \
	if (device == nullptr)                                                                     \
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;                                        \
	if (!writable(out, sizeof(*out)))                                                          \
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;

extern "C" {

ze_result_t zeDeviceGet(ze_driver_handle_t hDriver, uint32_t *pCount, ze_device_handle_t *phDevices)
{
	VZE_CALL(zeDeviceGet);
	if (object<Driver>(hDriver) == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	return call.end(give_devices(root_devices(), pCount, phDevices));
}

ze_result_t zeDeviceGetSubDevices(ze_device_handle_t hDevice, uint32_t *pCount,
				  ze_device_handle_t *phSubdevices)
{
	VZE_CALL(zeDeviceGetSubDevices);
	auto *device = object<Device>(hDevice);
	if (device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	return call.end(give_devices(device->children, pCount, phSubdevices));
}

ze_result_t zeDeviceGetProperties(ze_device_handle_t hDevice, ze_device_properties_t *properties)
{
	VZE_CALL(zeDeviceGetProperties);
	auto *device = object<Device>(hDevice);
	if (device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(properties, sizeof(*properties)))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	fill_properties(*device, *properties);
	call.with("device_handle", hDevice).with("device", uint64_t{device->index});
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeDeviceGetComputeProperties(ze_device_handle_t hDevice,
					 ze_device_compute_properties_t *properties)
{
	DEVICE_QUERY(device, properties);
	properties->maxTotalGroupSize = 1024;
	properties->maxGroupSizeX = properties->maxGroupSizeY = properties->maxGroupSizeZ = 1024;
	properties->maxGroupCountX = properties->maxGroupCountY = UINT32_MAX;
	properties->maxGroupCountZ = UINT32_MAX;
	properties->maxSharedLocalMemory = 65536;
	properties->numSubGroupSizes = 2;
	properties->subGroupSizes[0] = 16;
	properties->subGroupSizes[1] = 32;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetModuleProperties(ze_device_handle_t hDevice,
					ze_device_module_properties_t *properties)
{
	DEVICE_QUERY(device, properties);
	properties->spirvVersionSupported = ZE_MAKE_VERSION(1, 2);
	properties->flags = ZE_DEVICE_MODULE_FLAG_FP16 | ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS;
	properties->maxArgumentsSize = 2048;
	properties->printfBufferSize = 1 << 20;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetCommandQueueGroupProperties(ze_device_handle_t hDevice, uint32_t *pCount,
						   ze_command_queue_group_properties_t *out)
{
	DEVICE_QUERY(device, pCount);
	if (*pCount == 0 || out == nullptr) {
		*pCount = GROUPS;
		return ZE_RESULT_SUCCESS;
	}
	*pCount = std::min(*pCount, GROUPS);
	if (!writable(out, *pCount * sizeof(*out)))
		return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
	for (uint32_t i = 0; i < *pCount; i++) {
		out[i].flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
		if (i == GROUP_COMPUTE)
			out[i].flags |= ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE |
					ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COOPERATIVE_KERNELS;
		out[i].maxMemoryFillPatternSize = SIZE_MAX;
		out[i].numQueues = GROUP_QUEUES[i];
	}
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetMemoryProperties(ze_device_handle_t hDevice, uint32_t *pCount,
					ze_device_memory_properties_t *out)
{
	DEVICE_QUERY(device, pCount);
	if (*pCount > 0 && out != nullptr) {
		if (!writable(out, sizeof(*out)))
			return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
		out->flags = 0;
		out->maxClockRate = 3200;
		out->maxBusWidth = 1024;
		out->totalSize = 1ULL << 36;
		strcpy(out->name, "HBM");
	}
	*pCount = 1;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetMemoryAccessProperties(ze_device_handle_t hDevice,
					      ze_device_memory_access_properties_t *properties)
{
	DEVICE_QUERY(device, properties);
	auto all = ZE_MEMORY_ACCESS_CAP_FLAG_RW | ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC;
	properties->hostAllocCapabilities = properties->deviceAllocCapabilities = all;
	properties->sharedSingleDeviceAllocCapabilities = all;
	properties->sharedCrossDeviceAllocCapabilities = all;
	properties->sharedSystemAllocCapabilities = 0;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetCacheProperties(ze_device_handle_t hDevice, uint32_t *pCount,
				       ze_device_cache_properties_t *)
{
	DEVICE_QUERY(device, pCount);
	*pCount = 0;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetP2PProperties(ze_device_handle_t hDevice, ze_device_handle_t,
				     ze_device_p2p_properties_t *properties)
{
	DEVICE_QUERY(device, properties);
	properties->flags = ZE_DEVICE_P2P_PROPERTY_FLAG_ACCESS;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceCanAccessPeer(ze_device_handle_t hDevice, ze_device_handle_t hPeer,
				  ze_bool_t *value)
{
	DEVICE_QUERY(device, value);
	if (object<Device>(hPeer) == nullptr)
		return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
	*value = 1;
	return ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetStatus(ze_device_handle_t hDevice)
{
	return object<Device>(hDevice) == nullptr ? ZE_RESULT_ERROR_INVALID_NULL_HANDLE
						  : ZE_RESULT_SUCCESS;
}

ze_result_t zeDeviceGetGlobalTimestamps(ze_device_handle_t hDevice, uint64_t *hostTimestamp,
					uint64_t *deviceTimestamp)
{
	VZE_CALL(zeDeviceGetGlobalTimestamps);
	auto *device = object<Device>(hDevice);
	if (device == nullptr)
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
	if (!writable(hostTimestamp, 8) || !writable(deviceTimestamp, 8))
		return call.end(ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	uint64_t ns = now_ns();
	*hostTimestamp = ns;
	*deviceTimestamp = low_bits(ticks_at(device->index, ns), config.timestamp_bits);
	call.with("device", uint64_t{device->index});
	call.with("host_ns", ns).with("ticks", *deviceTimestamp);
	return call.end(ZE_RESULT_SUCCESS);
}

ze_result_t zeDevicePciGetPropertiesExt(ze_device_handle_t hDevice,
					ze_pci_ext_properties_t *properties)
{
	DEVICE_QUERY(device, properties);
	properties->address = {0, 0x40 + device->index, 0, 0};
	properties->maxSpeed = {5, 16, -1};
	return ZE_RESULT_SUCCESS;
}
}
