// Real VFIO, as the user-space driver of an accelerator uses it: container,
// group, device, and memory that is mapped for the device and unmapped again.
// It works on any PCI device that is bound to vfio-pci, in a VM that has an
// IOMMU.
//
// usage: vfio_work GROUP_NODE PCI_ADDRESS [MAPPINGS]
#include "account.h"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE 0x10000ull
#define IOVA 0x10000000ull

typedef unsigned long long ull;

static void account(const char *command, unsigned long number, struct call call, const char *fields)
{
	printf("{\"event\":\"call\",\"command\":\"%s\",\"number\":\"0x%lx\",\"before\":%llu,"
	       "\"after\":%llu,\"result\":%d,\"error\":%d%s}\n",
	       command, number, (ull)call.before, (ull)call.after, call.result, call.error, fields);
}

// Makes a call that must succeed. Returns its result.
static int must(int fd, const char *command, unsigned long number, void *argument)
{
	struct call call = timed_ioctl(fd, number, argument);
	account(command, number, call, "");
	if (call.result < 0)
		give_up(command);
	return call.result;
}

static void map(int container, void *memory, uint64_t iova)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof map,
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)memory,
		.iova = iova,
		.size = PIECE,
	};
	struct call call = timed_ioctl(container, VFIO_IOMMU_MAP_DMA, &map);
	char fields[128];
	snprintf(fields, sizeof fields, ",\"vaddr\":%llu,\"addr\":%llu,\"range\":%llu",
		 (ull)map.vaddr, (ull)iova, PIECE);
	account("IOMMU_MAP_DMA", VFIO_IOMMU_MAP_DMA, call, fields);
}

static void unmap(int container, uint64_t iova, uint64_t size)
{
	struct vfio_iommu_type1_dma_unmap unmap = {.argsz = sizeof unmap, .iova = iova, .size = size};
	struct call call = timed_ioctl(container, VFIO_IOMMU_UNMAP_DMA, &unmap);
	char fields[128];
	// The kernel returns how much was mapped there.
	snprintf(fields, sizeof fields, ",\"addr\":%llu,\"range\":%llu,\"unmapped\":%llu", (ull)iova,
		 (ull)size, (ull)unmap.size);
	account("IOMMU_UNMAP_DMA", VFIO_IOMMU_UNMAP_DMA, call, fields);
}

static int open_node(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		give_up(path);
	return fd;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: vfio_work GROUP_NODE PCI_ADDRESS [MAPPINGS]\n");
		return 2;
	}
	int mappings = argc > 3 ? atoi(argv[3]) : 4;
	int container = open_node("/dev/vfio/vfio"), group = open_node(argv[1]);
	must(container, "GET_API_VERSION", VFIO_GET_API_VERSION, NULL);
	struct vfio_group_status status = {.argsz = sizeof status};
	must(group, "GROUP_GET_STATUS", VFIO_GROUP_GET_STATUS, &status);
	must(group, "GROUP_SET_CONTAINER", VFIO_GROUP_SET_CONTAINER, &container);
	must(container, "SET_IOMMU", VFIO_SET_IOMMU, (void *)VFIO_TYPE1v2_IOMMU);
	int device = must(group, "GROUP_GET_DEVICE_FD", VFIO_GROUP_GET_DEVICE_FD, argv[2]);
	struct vfio_device_info information = {.argsz = sizeof information};
	must(device, "DEVICE_GET_INFO", VFIO_DEVICE_GET_INFO, &information);
	char *memory = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		give_up("mmap");
	for (int i = 0; i < mappings; i++)
		map(container, memory, IOVA + PIECE * (unsigned)i);
	// This is mapped already, so the kernel refuses.
	map(container, memory, IOVA);
	unmap(container, IOVA, PIECE);
	unmap(container, IOVA + PIECE, PIECE * (unsigned)(mappings - 1));
	// Not every device can be reset: both results are right.
	account("DEVICE_RESET", VFIO_DEVICE_RESET, timed_ioctl(device, VFIO_DEVICE_RESET, NULL), "");
	printf("{\"event\":\"end\",\"pid\":%d}\n", (int)getpid());
	return 0;
}
