/*
 * Keeps each CPU busy with work of which it counts the units, in a file that others map:
 * one number of 64 bits per CPU, a cache line apart..
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE 64

static volatile uint64_t *counts;

/* A unit is some 100 us of arithmetic, and of memory that fits the second cache. */
static void *work(void *argument)
{
	long cpu = (long)argument;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof set, &set))
		exit(1);
	uint32_t size = 1 << 16, *data = calloc(size, sizeof *data), state = 1;
	if (!data)
		exit(1);
	for (;;) {
		for (int i = 0; i < 20000; i++) {
			state = state * 1664525 + 1013904223;
			data[state & (size - 1)] += state >> 16;
		}
		counts[cpu * LINE / 8]++;
	}
	return 0;
}

int main(int argc, char **argv)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int file = argc > 1 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
	if (file < 0 || ftruncate(file, cpus * LINE))
		return 1;
	void *map = mmap(0, (size_t)(cpus * LINE), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (map == MAP_FAILED)
		return 1;
	counts = map;
	for (long cpu = 0; cpu < cpus; cpu++) {
		pthread_t thread;
		if (pthread_create(&thread, 0, work, (void *)cpu))
			return 1;
	}
	for (;;)
		pause();
}
