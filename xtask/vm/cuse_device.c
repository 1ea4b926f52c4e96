// A character device for tests, so that programs can make real ioctls of
// devices that this machine does not have. It answers a driver's ioctl numbers
// with outputs of that driver's shape (identifiers that count up). It uses
// /dev/cuse and its protocol (include/uapi/linux/fuse.h).
//
// usage: cuse_device NAME xe|i915|amdgpu|kfd
//
// It creates /dev/NAME and prints `{"event":"ready"...}`. Then it prints each
// ioctl that it serves, as it was requested. It runs until it is killed.
#include "account.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

// An output of a command: a 32-bit number at `offset`, which counts up from
// `first`.
struct output {
	uint8_t type, number;
	uint16_t offset;
	uint32_t first;
	// Milliseconds until the device answers.
	uint32_t delay_ms;
};

#define NO_OUTPUT 0xffff

static const struct output XE[] = {
	{'d', 0x43, 12, 1, 0},                // VM_CREATE: vm_id
	{'d', 0x46, 20, 1, 0},                // EXEC_QUEUE_CREATE: exec_queue_id
	{'d', 0x41, 28, 1, 0},                // GEM_CREATE: handle
	{'d', 0x4a, NO_OUTPUT, 0, 20},        // WAIT_USER_FENCE
	{0, 0, 0, 0, 0},
};
static const struct output I915[] = {
	{'d', 0x5b, 8, 1, 0},                 // GEM_CREATE: handle
	{'d', 0x6d, 0, 1, 0},                 // GEM_CONTEXT_CREATE: ctx_id
	{'d', 0x7a, 12, 1, 0},                // GEM_VM_CREATE: vm_id
	{'d', 0x6c, NO_OUTPUT, 0, 20},        // GEM_WAIT
	{0, 0, 0, 0, 0},
};
static const struct output AMDGPU[] = {
	{'d', 0x40, 0, 1, 0},                 // GEM_CREATE: handle
	{'d', 0x44, 0, 1, 0},                 // CS: sequence number
	{'d', 0x49, NO_OUTPUT, 0, 20},        // WAIT_CS
	{0, 0, 0, 0, 0},
};
static const struct output KFD[] = {
	{'K', 0x02, 52, 0, 0},                // CREATE_QUEUE: queue_id
	{'K', 0x0c, NO_OUTPUT, 0, 20},        // WAIT_EVENTS
	{0, 0, 0, 0, 0},
};

static const struct {
	const char *name;
	const struct output *outputs;
} DEVICES[] = {{"xe", XE}, {"i915", I915}, {"amdgpu", AMDGPU}, {"kfd", KFD}};

static const struct output *outputs_of(const char *name)
{
	for (size_t i = 0; i < sizeof DEVICES / sizeof *DEVICES; i++)
		if (strcmp(DEVICES[i].name, name) == 0)
			return DEVICES[i].outputs;
	return NULL;
}

// Sends an answer to the request `unique`: an error, or a body in two parts.
static void reply(int cuse, uint64_t unique, int error, struct iovec body, struct iovec data)
{
	struct fuse_out_header header = {
		.len = (uint32_t)(sizeof header + body.iov_len + data.iov_len),
		.error = -error,
		.unique = unique,
	};
	struct iovec parts[] = {{&header, sizeof header}, body, data};
	if (writev(cuse, parts, 3) < 0)
		give_up("answer to a request");
}

static const struct iovec NOTHING = {NULL, 0};

static void serve_init(int cuse, uint64_t unique, const struct cuse_init_in *in, const char *name)
{
	char information[128];
	int length = snprintf(information, sizeof information, "DEVNAME=%s", name);
	// Restricted ioctls: the kernel copies as many bytes as the command's size.
	struct cuse_init_out out = {
		.major = in->major,
		.minor = in->minor,
		.max_read = 4096,
		.max_write = 4096,
	};
	reply(cuse, unique, 0, (struct iovec){&out, sizeof out},
	      (struct iovec){information, (size_t)length + 1});
	printf("{\"event\":\"ready\",\"device\":\"/dev/%s\",\"pid\":%d}\n", name, (int)getpid());
}

static void serve_ioctl(int cuse, uint64_t unique, const struct fuse_ioctl_in *in,
			const uint8_t *input, size_t input_length, const struct output *outputs)
{
	static uint32_t served[256];
	// The largest size that a command number can have.
	static uint8_t data[1 << 14];
	size_t length = in->out_size < sizeof data ? in->out_size : sizeof data;
	uint8_t type = _IOC_TYPE(in->cmd), number = _IOC_NR(in->cmd);
	memset(data, 0, length);
	memcpy(data, input, input_length < length ? input_length : length);
	uint32_t value = 0;
	for (; outputs->type; outputs++) {
		if (outputs->type != type || outputs->number != number)
			continue;
		if (outputs->delay_ms)
			sleep_until(now_ns() + outputs->delay_ms * 1000000ull);
		value = outputs->first + served[number];
		if (outputs->offset != NO_OUTPUT && outputs->offset + sizeof value <= length)
			memcpy(data + outputs->offset, &value, sizeof value);
		break;
	}
	served[number]++;
	printf("{\"event\":\"served\",\"cmd\":\"0x%x\",\"in\":%zu,\"out\":%zu,\"value\":%u}\n", in->cmd,
	       input_length, length, value);
	struct fuse_ioctl_out out = {.result = 0};
	reply(cuse, unique, 0, (struct iovec){&out, sizeof out}, (struct iovec){data, length});
}

static void serve(int cuse, const uint8_t *request, size_t length, const char *name,
		  const struct output *outputs)
{
	const struct fuse_in_header *header = (const void *)request;
	const uint8_t *body = request + sizeof *header;
	size_t size = length - sizeof *header;
	struct fuse_open_out open = {.fh = 1};
	switch (header->opcode) {
	case CUSE_INIT:
		serve_init(cuse, header->unique, (const void *)body, name);
		break;
	case FUSE_OPEN:
		reply(cuse, header->unique, 0, (struct iovec){&open, sizeof open}, NOTHING);
		break;
	case FUSE_RELEASE:
		reply(cuse, header->unique, 0, NOTHING, NOTHING);
		break;
	case FUSE_IOCTL:
		serve_ioctl(cuse, header->unique, (const void *)body,
			    body + sizeof(struct fuse_ioctl_in),
			    size - sizeof(struct fuse_ioctl_in), outputs);
		break;
	case FUSE_INTERRUPT:
		// It needs no answer of its own.
		break;
	default:
		reply(cuse, header->unique, ENOSYS, NOTHING, NOTHING);
	}
}

int main(int argc, char **argv)
{
	const struct output *outputs = argc == 3 ? outputs_of(argv[2]) : NULL;
	if (!outputs) {
		fprintf(stderr, "usage: cuse_device NAME xe|i915|amdgpu|kfd\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	int cuse = open("/dev/cuse", O_RDWR | O_CLOEXEC);
	if (cuse < 0)
		give_up("/dev/cuse");
	// The kernel passes only whole requests, to readers with room for any of them.
	static uint8_t request[1 << 16] __attribute__((aligned(8)));
	for (;;) {
		ssize_t length = read(cuse, request, sizeof request);
		if (length < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
			continue;
		if (length < (ssize_t)sizeof(struct fuse_in_header))
			give_up("requests of /dev/cuse");
		serve(cuse, request, (size_t)length, argv[1], outputs);
	}
}
