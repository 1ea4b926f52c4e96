/*
 * A stand-in for libze_loader.so.1 (-DLIBRARY), and a program that launches through
 * it from many threads: `faults THREADS ROUNDS FILE`. What the arguments point at
 * lies in pages of FILE that are not in memory at the time of the call. Kernel
 * `k_N` (with 900 times `x` behind it if N is odd) is launched from call path N only,
 * whose calls are the bits of N. Prints `k_N COUNT` for each.
 */
#include <stdint.h>

typedef struct {
	uint32_t type;
	const void *next;
	uint32_t flags;
	const char *name;
} KernelDescription;

#ifdef LIBRARY
#define VISIBLE __attribute__((visibility("default")))
static uint64_t created;

__attribute__((noipa)) static int work(const void *object)
{
	return object == 0;
}

VISIBLE int zeInit(uint32_t flags)
{
	return flags ? work(&flags) : 0;
}

VISIBLE int zeKernelCreate(void *module, const KernelDescription *description, void **kernel)
{
	int failed = work(module) | work(description);
	uint64_t n = __atomic_add_fetch(&created, 1, __ATOMIC_RELAXED);
	/* Never used again, and ends in the number of the kernel. */
	uint64_t number = 0;
	for (const char *digit = description->name + 2; *digit >= '0' && *digit <= '9'; digit++)
		number = number * 10 + (uint64_t)(*digit - '0');
	*kernel = (void *)(uintptr_t)(0x10000 + 64 * n + number);
	return failed;
}

VISIBLE int zeKernelDestroy(void *kernel)
{
	int failed = work(kernel);
	return failed | work(&created);
}

VISIBLE int zeCommandListAppendLaunchKernel(void *list, void *kernel, const uint32_t *groups,
					    void *signal, uint32_t waits, void **events)
{
	(void)signal, (void)waits, (void)events;
	int failed = work(list) | work(kernel);
	return failed | work(groups);
}
#else
#define _GNU_SOURCE
#include "known.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int zeInit(uint32_t);
int zeKernelCreate(void *, const KernelDescription *, void **);
int zeKernelDestroy(void *);
int zeCommandListAppendLaunchKernel(void *, void *, const uint32_t *, void *, uint32_t, void **);

enum { BITS = 5, PATHS = 1 << BITS, PAGE = 4096 };
static long launched[PATHS];

typedef struct {
	int fd;
	int rounds;
	unsigned seed;
} Task;

static int path(unsigned n, int depth, void *kernel, const uint32_t *groups);
#define STEP(name)                                                                           \
	__attribute__((noinline)) static int name(unsigned n, int depth, void *kernel,       \
						  const uint32_t *groups)                    \
	{                                                                                    \
		volatile int room[4] = {depth};                                              \
		return path(n, depth, kernel, groups) + (room[0] != depth);                  \
	}
STEP(zero)
STEP(one)
static inline __attribute__((always_inline)) int path(unsigned n, int depth, void *kernel,
						      const uint32_t *groups)
{
	if (depth == 0)
		return zeCommandListAppendLaunchKernel((void *)64, kernel, groups, 0, 0, 0);
	return n >> (depth - 1) & 1 ? one(n, depth - 1, kernel, groups)
				    : zero(n, depth - 1, kernel, groups);
}

/* The first page has the groups, page 1 + N the name of kernel N. */
static char *open_pages(int fd)
{
	char *pages = mmap(0, (1 + PATHS) * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	return pages == MAP_FAILED ? 0 : pages;
}

static void *run(void *argument)
{
	Task *task = argument;
	char *pages = open_pages(task->fd);
	if (!pages)
		return (void *)1;
	for (int i = 0; i < task->rounds; i++) {
		unsigned n = rand_r(&task->seed) % PATHS;
		KernelDescription description = {0x1d, 0, 0, pages + (1 + n) * PAGE};
		void *kernel = 0;
		/* Out of this process, not out of the page cache: a fault brings it. */
		madvise(pages, (1 + PATHS) * PAGE, MADV_DONTNEED);
		if (zeKernelCreate((void *)128, &description, &kernel) ||
		    path(n, BITS, kernel, (uint32_t *)pages) || zeKernelDestroy(kernel))
			return (void *)1;
		__atomic_add_fetch(&launched[n], 1, __ATOMIC_RELAXED);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int threads = atoi(argv[1]);
	int fd = open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, (1 + PATHS) * PAGE))
		return perror(argv[3]), 1;
	uint32_t groups[3] = {7, 5, 3};
	if (pwrite(fd, groups, sizeof groups, 0) != sizeof groups)
		return perror(argv[3]), 1;
	for (int n = 0; n < PATHS; n++) {
		char name[1024];
		int size = snprintf(name, sizeof name, "k_%d", n);
		/* C++ templates make long ones. */
		if (n & 1) {
			memset(name + size, 'x', 900);
			name[size += 900] = 0;
		}
		if (pwrite(fd, name, (size_t)size + 1, (1 + n) * PAGE) < 0)
			return perror(argv[3]), 1;
	}
	zeInit(0);
	/* Floods keep a recording from knowing all: there it is given the time to attach. */
	if (!wait_until_known())
		usleep(500000);
	pthread_t ids[256];
	Task tasks[256];
	for (int i = 0; i < threads && i < 256; i++) {
		tasks[i] = (Task){fd, atoi(argv[2]), (unsigned)i + 1};
		if (pthread_create(&ids[i], 0, run, &tasks[i]))
			return perror("pthread_create"), 1;
	}
	int failed = 0;
	for (int i = 0; i < threads && i < 256; i++) {
		void *result;
		pthread_join(ids[i], &result);
		failed |= result != 0;
	}
	for (int n = 0; n < PATHS; n++)
		printf("k_%d %ld\n", n, launched[n]);
	return failed;
}
#endif
