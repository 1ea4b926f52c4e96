/*
 * Calls a probed function with a name in a page that never comes: `absent_pages FILE
 * THREADS`. It maps FILE, or for `userfaultfd` memory whose pages are never provided,
 * prints a line, waits for one and calls zeKernelCreate on each thread.
 * To be linked with the library of faults.c. It exits with 77 where users
 * may have no userfaultfd that holds up the kernel.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
	uint32_t type;
	const void *next;
	uint32_t flags;
	const char *name;
} KernelDescription;

int zeInit(uint32_t);
int zeKernelCreate(void *, const KernelDescription *, void **);

static char *pages;

static void *create(void *argument)
{
	long n = (long)argument;
	KernelDescription description = {0x1d, 0, 0, pages + n * 4096};
	void *kernel = 0;
	zeKernelCreate((void *)128, &description, &kernel);
	return 0;
}

/* Makes sure that the pages of `size` bytes of memory are never provided. */
static void withhold(size_t size)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {
		.range = {(uintptr_t)pages, size},
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range)) {
		perror("userfaultfd");
		exit(77);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int is_file = strcmp(argv[1], "userfaultfd") != 0, n = atoi(argv[2]);
	int fd = is_file ? open(argv[1], O_RDONLY) : -1;
	if (is_file && fd < 0)
		return perror(argv[1]), 1;
	size_t size = (size_t)n * 4096;
	int flags = is_file ? MAP_PRIVATE : MAP_PRIVATE | MAP_ANONYMOUS;
	pages = mmap(0, size, PROT_READ | (is_file ? 0 : PROT_WRITE), flags, fd, 0);
	if (pages == MAP_FAILED)
		return perror("mmap"), 1;
	if (!is_file)
		withhold(size);
	zeInit(0);
	puts("mapped");
	fflush(stdout);
	getchar();
	for (long i = 0; i < n; i++) {
		pthread_t thread;
		pthread_create(&thread, 0, create, (void *)i);
	}
	puts("called");
	fflush(stdout);
	for (;;)
		pause();
}
