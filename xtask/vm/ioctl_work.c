// Makes a known sequence of accelerator ioctls, each with known field values,
// and prints what it did: the truth to which a tracer's events are compared.
//
// usage: ioctl_work xe|i915|amdgpu|kfd NODE [ROUNDS]
//
// Each line has the command, its number, the times before and after it, its
// result, and the fields as they were when it returned. Each round is one
// submission, called through main, run_NAME and submit_NAME, and one wait for
// it.
#include "account.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <unistd.h>

#define MAGIC_ADDRESS 0x100000000ull

// Prints a call; `fields` is the rest of its JSON object, with a leading comma.
static void account(const char *command, unsigned long number, struct call call, const char *fields)
{
	printf("{\"event\":\"call\",\"command\":\"%s\",\"number\":\"0x%lx\",\"before\":%llu,"
	       "\"after\":%llu,\"result\":%d,\"error\":%d%s}\n",
	       command, number, (unsigned long long)call.before, (unsigned long long)call.after,
	       call.result, call.error, fields);
}

// Makes a call and prints it. The fields are given as for printf, and are
// evaluated after the call, so that outputs are seen.
#define DO(fd, command, number, argument, ...)                                     \
	do {                                                                       \
		struct call call_ = timed_ioctl(fd, number, argument);             \
		char fields_[512];                                                 \
		snprintf(fields_, sizeof fields_, __VA_ARGS__);                    \
		account(command, number, call_, fields_);                          \
	} while (0)

typedef unsigned long long ull;

// The functions that make submissions, and those that call them, are in
// sections of their own. The linker names the bounds of these: the truth about
// call paths.
#define SUBMIT __attribute__((noinline, section("calls_submit")))
#define RUN __attribute__((noinline, section("calls_run")))
extern const char __start_calls_submit[], __stop_calls_submit[];
extern const char __start_calls_run[], __stop_calls_run[];

static void account_code(const char *name, const char *start, const char *stop)
{
	printf("{\"event\":\"code\",\"name\":\"%s\",\"start\":%llu,\"stop\":%llu}\n", name,
	       (ull)(uintptr_t)start, (ull)(uintptr_t)stop);
}

// --- xe: include/uapi/drm/xe_drm.h ---

struct xe_query {
	uint64_t extensions;
	uint32_t query, size;
	uint64_t data, reserved[2];
};
struct xe_gem_create {
	uint64_t extensions, size;
	uint32_t placement, flags, vm_id, handle;
	uint16_t cpu_caching, pad[3];
	uint64_t reserved[2];
};
struct xe_vm_create {
	uint64_t extensions;
	uint32_t flags, vm_id;
	uint64_t reserved[2];
};
struct xe_destroy {
	uint32_t id, pad;
	uint64_t reserved[2];
};
struct xe_bind_op {
	uint64_t extensions;
	uint32_t obj;
	uint16_t pat_index, pad;
	uint64_t obj_offset, range, addr;
	uint32_t op, flags, region, pad2;
	uint64_t reserved[3];
};
struct xe_vm_bind {
	uint64_t extensions;
	uint32_t vm_id, exec_queue_id, pad, num_binds;
	union {
		struct xe_bind_op bind;
		uint64_t vector;
	};
	uint32_t pad2, num_syncs;
	uint64_t syncs, reserved[2];
};
struct xe_instance {
	uint16_t engine_class, engine_instance, gt_id, pad;
};
struct xe_queue_create {
	uint64_t extensions;
	uint16_t width, num_placements;
	uint32_t vm_id, flags, exec_queue_id;
	uint64_t instances, reserved[2];
};
struct xe_exec {
	uint64_t extensions;
	uint32_t exec_queue_id, num_syncs;
	uint64_t syncs, address;
	uint16_t num_batch_buffer, pad[3];
	uint64_t reserved[2];
};
struct xe_wait {
	uint64_t extensions, addr;
	uint16_t op, flags;
	uint32_t pad;
	uint64_t value, mask;
	int64_t timeout;
	uint32_t exec_queue_id, pad2;
	uint64_t reserved[2];
};
struct gem_close {
	uint32_t handle, pad;
};

#define XE_QUERY _IOWR('d', 0x40, struct xe_query)
#define XE_GEM_CREATE _IOWR('d', 0x41, struct xe_gem_create)
#define XE_VM_CREATE _IOWR('d', 0x43, struct xe_vm_create)
#define XE_VM_DESTROY _IOW('d', 0x44, struct xe_destroy)
#define XE_VM_BIND _IOW('d', 0x45, struct xe_vm_bind)
#define XE_QUEUE_CREATE _IOWR('d', 0x46, struct xe_queue_create)
#define XE_QUEUE_DESTROY _IOW('d', 0x47, struct xe_destroy)
#define XE_EXEC _IOW('d', 0x49, struct xe_exec)
#define XE_WAIT _IOWR('d', 0x4a, struct xe_wait)
#define GEM_CLOSE _IOW('d', 0x09, struct gem_close)

_Static_assert(XE_VM_BIND == 0x40886445, "as in the driver's header");
_Static_assert(XE_EXEC == 0x40386449, "as in the driver's header");

enum { OP_MAP, OP_UNMAP, OP_MAP_USERPTR };

static void xe_bind_one(int fd, uint32_t vm, uint32_t op, uint32_t obj, uint64_t addr,
			uint64_t range)
{
	struct xe_vm_bind bind = {.vm_id = vm, .num_binds = 1};
	bind.bind = (struct xe_bind_op){.obj = obj, .addr = addr, .range = range, .op = op};
	DO(fd, "VM_BIND", XE_VM_BIND, &bind,
	   ",\"vm\":%u,\"binds\":[{\"op\":%u,\"obj\":%u,\"addr\":%llu,\"range\":%llu}]", vm, op, obj,
	   (ull)addr, (ull)range);
}

static void xe_bind_three(int fd, uint32_t vm, uint32_t obj, const void *memory)
{
	struct xe_bind_op ops[3] = {
		{.obj = obj, .addr = MAGIC_ADDRESS + 0x100000, .range = 0x10000, .op = OP_MAP},
		{.obj_offset = (uintptr_t)memory, .addr = MAGIC_ADDRESS + 0x200000,
		 .range = 0x4000, .op = OP_MAP_USERPTR},
		{.addr = MAGIC_ADDRESS + 0x100000, .range = 0x8000, .op = OP_UNMAP},
	};
	struct xe_vm_bind bind = {.vm_id = vm, .num_binds = 3, .vector = (uintptr_t)ops};
	DO(fd, "VM_BIND", XE_VM_BIND, &bind,
	   ",\"vm\":%u,\"binds\":[{\"op\":0,\"obj\":%u,\"addr\":%llu,\"range\":65536},"
	   "{\"op\":2,\"obj\":0,\"addr\":%llu,\"range\":16384},"
	   "{\"op\":1,\"obj\":0,\"addr\":%llu,\"range\":32768}]",
	   vm, obj, (ull)ops[0].addr, (ull)ops[1].addr, (ull)ops[2].addr);
}

SUBMIT void submit_xe(int fd, uint32_t queue, uint64_t address)
{
	struct xe_exec exec = {
		.exec_queue_id = queue, .address = address, .num_batch_buffer = 1};
	DO(fd, "EXEC", XE_EXEC, &exec, ",\"queue\":%u,\"address\":%llu", queue, (ull)address);
}

static uint32_t xe_create_queue(int fd, uint32_t vm)
{
	struct xe_instance compute = {.engine_class = 4};
	struct xe_queue_create create = {.width = 1, .num_placements = 1, .vm_id = vm,
					 .instances = (uintptr_t)&compute};
	DO(fd, "EXEC_QUEUE_CREATE", XE_QUEUE_CREATE, &create, ",\"vm\":%u,\"queue\":%u", vm,
	   create.exec_queue_id);
	return create.exec_queue_id;
}

// Calls that a tracer must survive: an argument that is no address, a number
// that no table has, and a file that is no device.
static void xe_mistakes(int fd)
{
	struct xe_destroy nothing = {0};
	DO(fd, "EXEC", XE_EXEC, (void *)8, ",\"bad\":\"address\"");
	DO(fd, "unknown", _IOW('d', 0x9e, struct xe_destroy), &nothing, ",\"bad\":\"number\"");
	DO(STDIN_FILENO, "EXEC", XE_EXEC, &nothing, ",\"bad\":\"file\"");
	DO(-1, "EXEC", XE_EXEC, &nothing, ",\"bad\":\"descriptor\"");
}

RUN void run_xe(int fd, int rounds)
{
	static uint64_t memory[0x4000 / 8] __attribute__((aligned(4096)));
	struct xe_query query = {.query = 3};
	DO(fd, "DEVICE_QUERY", XE_QUERY, &query, ",\"query\":3");
	struct xe_vm_create vm = {.flags = 1};
	DO(fd, "VM_CREATE", XE_VM_CREATE, &vm, ",\"vm\":%u", vm.vm_id);
	struct xe_gem_create gem = {.size = 0x10000, .placement = 1, .vm_id = vm.vm_id};
	DO(fd, "GEM_CREATE", XE_GEM_CREATE, &gem, ",\"vm\":%u,\"size\":65536,\"handle\":%u",
	   vm.vm_id, gem.handle);
	xe_bind_one(fd, vm.vm_id, OP_MAP, gem.handle, MAGIC_ADDRESS, 0x10000);
	xe_bind_three(fd, vm.vm_id, gem.handle, memory);
	uint32_t queue = xe_create_queue(fd, vm.vm_id);
	for (int i = 0; i < rounds; i++) {
		submit_xe(fd, queue, MAGIC_ADDRESS + 0x100u * (unsigned)i);
		struct xe_wait wait = {.addr = (uintptr_t)memory, .value = (uint64_t)i, .mask = ~0ull,
				       .timeout = 1000000000, .exec_queue_id = queue};
		DO(fd, "WAIT_USER_FENCE", XE_WAIT, &wait, ",\"queue\":%u,\"value\":%d", queue, i);
	}
	xe_bind_one(fd, vm.vm_id, OP_UNMAP, 0, MAGIC_ADDRESS, 0x10000);
	struct xe_destroy no_queue = {.id = queue}, no_vm = {.id = vm.vm_id};
	DO(fd, "EXEC_QUEUE_DESTROY", XE_QUEUE_DESTROY, &no_queue, ",\"queue\":%u", queue);
	DO(fd, "VM_DESTROY", XE_VM_DESTROY, &no_vm, ",\"vm\":%u", vm.vm_id);
	struct gem_close close = {.handle = gem.handle};
	DO(fd, "GEM_CLOSE", GEM_CLOSE, &close, ",\"handle\":%u", gem.handle);
	xe_mistakes(fd);
}

// --- i915: include/uapi/drm/i915_drm.h ---

struct i915_gem_create {
	uint64_t size;
	uint32_t handle, pad;
};
struct i915_context {
	uint32_t ctx_id, flags;
};
struct i915_vm {
	uint64_t extensions;
	uint32_t flags, vm_id;
};
struct i915_object {
	uint32_t handle, relocation_count;
	uint64_t relocs, alignment, offset, flags, rsvd1, rsvd2;
};
struct i915_execbuffer2 {
	uint64_t buffers;
	uint32_t buffer_count, batch_start_offset, batch_len, dr1, dr4, num_cliprects;
	uint64_t cliprects, flags, rsvd1, rsvd2;
};
struct i915_wait {
	uint32_t handle, flags;
	int64_t timeout;
};

#define I915_GEM_CREATE _IOWR('d', 0x5b, struct i915_gem_create)
#define I915_CONTEXT_CREATE _IOWR('d', 0x6d, struct i915_context)
#define I915_CONTEXT_DESTROY _IOW('d', 0x6e, struct i915_context)
#define I915_VM_CREATE _IOWR('d', 0x7a, struct i915_vm)
#define I915_VM_DESTROY _IOW('d', 0x7b, struct i915_vm)
#define I915_EXECBUFFER2 _IOW('d', 0x69, struct i915_execbuffer2)
#define I915_WAIT _IOWR('d', 0x6c, struct i915_wait)

_Static_assert(I915_EXECBUFFER2 == 0x40406469, "as in the driver's header");

SUBMIT void submit_i915(int fd, uint32_t context, uint32_t data, uint32_t batch,
					   uint64_t address)
{
	struct i915_object objects[2] = {{.handle = data, .offset = MAGIC_ADDRESS + 0x800000},
					 {.handle = batch, .offset = address}};
	struct i915_execbuffer2 exec = {.buffers = (uintptr_t)objects, .buffer_count = 2,
					.batch_len = 0x40, .flags = 3, .rsvd1 = context};
	DO(fd, "EXECBUFFER2", I915_EXECBUFFER2, &exec,
	   ",\"queue\":%u,\"batch\":%u,\"address\":%llu,\"buffers\":2", context, batch, (ull)address);
}

RUN void run_i915(int fd, int rounds)
{
	struct i915_gem_create data = {.size = 0x20000}, batch = {.size = 0x1000};
	DO(fd, "GEM_CREATE", I915_GEM_CREATE, &data, ",\"size\":131072,\"handle\":%u", data.handle);
	DO(fd, "GEM_CREATE", I915_GEM_CREATE, &batch, ",\"size\":4096,\"handle\":%u", batch.handle);
	struct i915_vm vm = {0};
	DO(fd, "GEM_VM_CREATE", I915_VM_CREATE, &vm, ",\"vm\":%u", vm.vm_id);
	struct i915_context context = {0};
	DO(fd, "GEM_CONTEXT_CREATE", I915_CONTEXT_CREATE, &context, ",\"queue\":%u", context.ctx_id);
	for (int i = 0; i < rounds; i++) {
		submit_i915(fd, context.ctx_id, data.handle, batch.handle,
			    MAGIC_ADDRESS + 0x1000u * (unsigned)i);
		struct i915_wait wait = {.handle = batch.handle, .timeout = 1000000000};
		DO(fd, "GEM_WAIT", I915_WAIT, &wait, ",\"handle\":%u", batch.handle);
	}
	DO(fd, "GEM_CONTEXT_DESTROY", I915_CONTEXT_DESTROY, &context, ",\"queue\":%u",
	   context.ctx_id);
	DO(fd, "GEM_VM_DESTROY", I915_VM_DESTROY, &vm, ",\"vm\":%u", vm.vm_id);
	struct gem_close close = {.handle = data.handle};
	DO(fd, "GEM_CLOSE", GEM_CLOSE, &close, ",\"handle\":%u", data.handle);
}

// --- amdgpu: include/uapi/drm/amdgpu_drm.h ---

// In the header this is a union: the outputs replace the inputs.
struct amdgpu_gem_create {
	uint64_t bo_size, alignment, domains, flags;
};
struct amdgpu_cs {
	uint32_t ctx_id, bo_list;
	uint32_t num_chunks, flags;
	uint64_t chunks;
};
struct amdgpu_va {
	uint32_t handle, pad, operation, flags;
	uint64_t va_address, offset_in_bo, map_size;
};
struct amdgpu_wait_cs {
	uint64_t handle, timeout;
	uint32_t ip_type, ip_instance, ring, ctx_id;
};

#define AMDGPU_GEM_CREATE _IOWR('d', 0x40, struct amdgpu_gem_create)
#define AMDGPU_CS _IOWR('d', 0x44, struct amdgpu_cs)
#define AMDGPU_VA _IOW('d', 0x48, struct amdgpu_va)
#define AMDGPU_WAIT_CS _IOWR('d', 0x49, struct amdgpu_wait_cs)

SUBMIT void submit_amdgpu(int fd, uint32_t context)
{
	struct amdgpu_cs cs = {.ctx_id = context};
	struct amdgpu_cs in = cs;
	struct call call = timed_ioctl(fd, AMDGPU_CS, &cs);
	uint64_t sequence;
	memcpy(&sequence, &cs, sizeof sequence);
	char fields[128];
	// The device's answer has 32 bits; the rest is still the input.
	snprintf(fields, sizeof fields, ",\"queue\":%u,\"sequence\":%llu", in.ctx_id,
		 (ull)(uint32_t)sequence);
	account("CS", AMDGPU_CS, call, fields);
}

RUN void run_amdgpu(int fd, int rounds)
{
	struct amdgpu_gem_create create = {.bo_size = 0x200000, .alignment = 4096, .domains = 4};
	DO(fd, "GEM_CREATE", AMDGPU_GEM_CREATE, &create, ",\"size\":2097152,\"handle\":%u",
	   (unsigned)(uint32_t)create.bo_size);
	struct amdgpu_va va = {.handle = (uint32_t)create.bo_size, .operation = 1,
			       .va_address = MAGIC_ADDRESS, .map_size = 0x200000};
	DO(fd, "GEM_VA", AMDGPU_VA, &va, ",\"handle\":%u,\"op\":1,\"addr\":%llu,\"range\":2097152",
	   va.handle, (ull)va.va_address);
	for (int i = 0; i < rounds; i++) {
		submit_amdgpu(fd, 7);
		struct amdgpu_wait_cs wait = {.handle = (uint64_t)i + 1, .ctx_id = 7};
		DO(fd, "WAIT_CS", AMDGPU_WAIT_CS, &wait, ",\"queue\":7");
	}
	va.operation = 2;
	DO(fd, "GEM_VA", AMDGPU_VA, &va, ",\"handle\":%u,\"op\":2,\"addr\":%llu,\"range\":2097152",
	   va.handle, (ull)va.va_address);
}

// --- kfd: include/uapi/linux/kfd_ioctl.h ---

struct kfd_queue {
	uint64_t ring_base, write_pointer, read_pointer, doorbell_offset;
	uint32_t ring_size, gpu_id, type, percentage, priority, queue_id;
	uint64_t eop_address, eop_size, ctx_save_address;
	uint32_t ctx_save_size, ctl_stack_size;
};
struct kfd_destroy {
	uint32_t queue_id, pad;
};
struct kfd_wait {
	uint64_t events;
	uint32_t num_events, for_all, timeout, result;
};

#define KFD_CREATE_QUEUE _IOWR('K', 0x02, struct kfd_queue)
#define KFD_DESTROY_QUEUE _IOWR('K', 0x03, struct kfd_destroy)
#define KFD_WAIT_EVENTS _IOWR('K', 0x0c, struct kfd_wait)

_Static_assert(KFD_CREATE_QUEUE == 0xc0584b02, "as in the driver's header");

RUN void run_kfd(int fd, int rounds)
{
	struct kfd_queue queue = {.ring_base = MAGIC_ADDRESS, .ring_size = 0x1000, .gpu_id = 4711};
	DO(fd, "CREATE_QUEUE", KFD_CREATE_QUEUE, &queue, ",\"gpu\":4711,\"queue\":%u",
	   queue.queue_id);
	for (int i = 0; i < rounds; i++) {
		struct kfd_wait wait = {.num_events = 1, .timeout = 1000};
		DO(fd, "WAIT_EVENTS", KFD_WAIT_EVENTS, &wait, ",\"events\":1");
	}
	struct kfd_destroy destroy = {.queue_id = queue.queue_id};
	DO(fd, "DESTROY_QUEUE", KFD_DESTROY_QUEUE, &destroy, ",\"queue\":%u", queue.queue_id);
}

static const struct {
	const char *name;
	void (*run)(int fd, int rounds);
} WORKS[] = {{"xe", run_xe}, {"i915", run_i915}, {"amdgpu", run_amdgpu}, {"kfd", run_kfd}};

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: ioctl_work xe|i915|amdgpu|kfd NODE [ROUNDS]\n");
		return 2;
	}
	int fd = open(argv[2], O_RDWR | O_CLOEXEC);
	if (fd < 0)
		give_up(argv[2]);
	account_code("submit", __start_calls_submit, __stop_calls_submit);
	account_code("run", __start_calls_run, __stop_calls_run);
	for (size_t i = 0; i < sizeof WORKS / sizeof *WORKS; i++) {
		if (strcmp(argv[1], WORKS[i].name) != 0)
			continue;
		WORKS[i].run(fd, argc > 3 ? atoi(argv[3]) : 5);
		printf("{\"event\":\"end\",\"pid\":%d}\n", (int)getpid());
		return 0;
	}
	errno = EINVAL;
	give_up(argv[1]);
}
