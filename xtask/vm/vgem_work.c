// Real DRM ioctls and real fences of known length. Fences are attached to
// buffers on vgem's nodes and signalled on a schedule. The program records
// every step with its own clock.
//
// usage: vgem_work CARD_NODE RENDER_NODE [ROUNDS]
//
// Each round attaches one fence per entry of HELD_MS to a buffer of its own.
// The fences begin 5 ms apart, so they overlap, and each is signalled when its
// time is over. One last fence is left until the program ends: the kernel
// signals it when the file is closed.
#include "account.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <poll.h>
#include <unistd.h>

// include/uapi/drm/drm_mode.h and drm.h
struct create_dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};
struct prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};
// include/uapi/drm/vgem_drm.h
struct fence_attach {
	uint32_t handle, flags, out_fence, pad;
};
struct fence_signal {
	uint32_t fence, flags;
};

#define CREATE_DUMB _IOWR('d', 0xb2, struct create_dumb)
#define HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)
#define FD_TO_HANDLE _IOWR('d', 0x2e, struct prime_handle)
#define VGEM_ATTACH _IOWR('d', 0x41, struct fence_attach)
#define VGEM_SIGNAL _IOW('d', 0x42, struct fence_signal)
#define FENCE_WRITE 1

static const unsigned HELD_MS[] = {30, 40, 60, 100, 200};
#define FENCES (sizeof HELD_MS / sizeof *HELD_MS)

struct buffer {
	uint32_t handle; // on the render node
	int dma_buf;
	uint32_t fence;
	struct call attach;
	uint64_t due;
};

static int open_node(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		give_up(path);
	return fd;
}

// Makes a buffer on the card node, where dumb buffers are allowed, and imports
// it to the render node as a dma-buf, as programs do.
static struct buffer make_buffer(int card, int render)
{
	struct buffer buffer = {0};
	struct create_dumb dumb = {.height = 16, .width = 64, .bpp = 32};
	struct call call = timed_ioctl(card, CREATE_DUMB, &dumb);
	if (call.result < 0)
		give_up("CREATE_DUMB");
	printf("{\"event\":\"create\",\"handle\":%u,\"size\":%llu,\"before\":%llu,\"after\":%llu}\n",
	       dumb.handle, (unsigned long long)dumb.size, (unsigned long long)call.before,
	       (unsigned long long)call.after);
	struct prime_handle prime = {.handle = dumb.handle, .flags = O_CLOEXEC | O_RDWR};
	if (ioctl(card, HANDLE_TO_FD, &prime) < 0)
		give_up("PRIME_HANDLE_TO_FD");
	buffer.dma_buf = prime.fd;
	struct prime_handle import = {.fd = prime.fd};
	if (ioctl(render, FD_TO_HANDLE, &import) < 0)
		give_up("PRIME_FD_TO_HANDLE");
	buffer.handle = import.handle;
	return buffer;
}

__attribute__((noinline)) static void attach(int render, struct buffer *buffer, unsigned held_ms)
{
	struct fence_attach argument = {.handle = buffer->handle, .flags = FENCE_WRITE};
	buffer->attach = timed_ioctl(render, VGEM_ATTACH, &argument);
	if (buffer->attach.result < 0)
		give_up("VGEM_FENCE_ATTACH");
	buffer->fence = argument.out_fence;
	buffer->due = buffer->attach.after + held_ms * 1000000ull;
	printf("{\"event\":\"attach\",\"fence\":%u,\"handle\":%u,\"before\":%llu,\"after\":%llu}\n",
	       buffer->fence, buffer->handle, (unsigned long long)buffer->attach.before,
	       (unsigned long long)buffer->attach.after);
}

// Whether the buffer is idle for the kernel.
static int is_idle(const struct buffer *buffer)
{
	struct pollfd wait = {.fd = buffer->dma_buf, .events = POLLIN};
	return poll(&wait, 1, 0) == 1;
}

__attribute__((noinline)) static void signal_fence(int render, struct buffer *buffer)
{
	int busy_before = !is_idle(buffer);
	struct fence_signal argument = {.fence = buffer->fence};
	struct call call = timed_ioctl(render, VGEM_SIGNAL, &argument);
	if (call.result < 0)
		give_up("VGEM_FENCE_SIGNAL");
	if (!busy_before || !is_idle(buffer)) {
		errno = EPROTO;
		give_up("a fence was not pending until it was signalled");
	}
	// From the middle of one ioctl to the middle of the other.
	uint64_t start = (buffer->attach.before + buffer->attach.after) / 2;
	uint64_t end = (call.before + call.after) / 2;
	printf("{\"event\":\"signal\",\"fence\":%u,\"before\":%llu,\"after\":%llu,\"pending_ns\":%llu}\n",
	       buffer->fence, (unsigned long long)call.before, (unsigned long long)call.after,
	       (unsigned long long)(end - start));
}

static void round_of_fences(int render, struct buffer *buffers)
{
	uint64_t start = now_ns();
	for (size_t i = 0; i < FENCES; i++) {
		sleep_until(start + i * 5000000ull);
		attach(render, &buffers[i], HELD_MS[i]);
	}
	// HELD_MS grows by more than the interval of the attachments. So the fences
	// end in the order in which they began, and the first ends after the last
	// began.
	for (size_t i = 0; i < FENCES; i++) {
		sleep_until(buffers[i].due);
		signal_fence(render, &buffers[i]);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: vgem_work CARD_NODE RENDER_NODE [ROUNDS]\n");
		return 2;
	}
	int rounds = argc > 3 ? atoi(argv[3]) : 3;
	int card = open_node(argv[1]), render = open_node(argv[2]);
	struct buffer buffers[FENCES];
	for (size_t i = 0; i < FENCES; i++)
		buffers[i] = make_buffer(card, render);
	for (int i = 0; i < rounds; i++)
		round_of_fences(render, buffers);
	attach(render, &buffers[0], 0);
	printf("{\"event\":\"left\",\"fence\":%u}\n", buffers[0].fence);
	printf("{\"event\":\"end\",\"pid\":%d,\"fences\":%zu}\n", (int)getpid(),
	       (size_t)rounds * FENCES);
	return 0;
}
