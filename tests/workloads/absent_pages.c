/*
 * Calls a probed function with a name in a page that never comes:
 * `absent_pages FILE THREADS` maps FILE, prints a line, waits for one and calls
 * zeKernelCreate on each thread. To be linked with the library of faults.c.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
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

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int fd = open(argv[1], O_RDONLY), n = atoi(argv[2]);
	if (fd < 0)
		return perror(argv[1]), 1;
	pages = mmap(0, (size_t)n * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	if (pages == MAP_FAILED)
		return perror("mmap"), 1;
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
