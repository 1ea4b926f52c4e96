/*
 * Shared by the workloads. Each prints "pid N" first, then burns a given number of
 * CPU seconds (first argument, default 1). So tests judge it by CPU time and not
 * by the load of the machine it shares.
 */
#ifndef WORK_H
#define WORK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define UNUSED __attribute__((unused))

static double work_end;

/* CPU seconds of a clock. */
static NOINLINE UNUSED double cpu_seconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Prints the pid and sets the budget of CPU time. */
static UNUSED void work_begin(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	printf("pid %d\n", (int)getpid());
	fflush(stdout);
	work_end = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) + seconds;
}

/* Whether CPU time is left. A system call: ask every few milliseconds. */
static NOINLINE UNUSED int work_left(void)
{
	return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) < work_end;
}

/* Burns CPU in the function it is inlined into, calling nothing. */
static inline __attribute__((always_inline)) UNUSED unsigned long
burn(unsigned long rounds)
{
	unsigned long x = rounds | 1;
	for (unsigned long i = 0; i < rounds; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		__asm__ volatile("" : "+r"(x));
	}
	return x;
}

/* About a millisecond of burn(), within a factor of a few. */
#define MILLISECOND 500000UL

#endif
