/*
 * Spends about 70, 20 and 10 % of its CPU time in three functions, in long blocks
 * (so that sampling cannot fall into step with it). It prints the time of each
 * by the thread's own CPU clock, and how long all of it took.
 */
#include "work.h"

static NOINLINE unsigned long seventy(unsigned long n) { return burn(n) + 7; }
static NOINLINE unsigned long twenty(unsigned long n) { return burn(n) + 2; }
static NOINLINE unsigned long ten(unsigned long n) { return burn(n) + 1; }

/* Runs a function for a span of CPU time; returns the CPU time it had. */
static NOINLINE double spend(unsigned long (*f)(unsigned long), double seconds)
{
	double start = cpu_seconds(CLOCK_THREAD_CPUTIME_ID), now = start;
	while (now < start + seconds) {
		f(4 * MILLISECOND);
		now = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
	}
	return now - start;
}

int main(int argc, char **argv)
{
	double had[3] = { 0 }, seconds = argc > 1 ? atof(argv[1]) : 1;
	double start = cpu_seconds(CLOCK_MONOTONIC);
	work_begin(argc, argv);
	for (int round = 0; round < 2; round++) {
		had[0] += spend(seventy, seconds * 0.35);
		had[1] += spend(twenty, seconds * 0.10);
		had[2] += spend(ten, seconds * 0.05);
	}
	printf("seventy %.6f\ntwenty %.6f\nten %.6f\n", had[0], had[1], had[2]);
	printf("took %.6f\n", cpu_seconds(CLOCK_MONOTONIC) - start);
	return 0;
}
