/* Reads the clock, which on most machines is code in the vdso. */
#include "work.h"

static NOINLINE long vdso_loop(int rounds)
{
	struct timespec t;
	long sum = 0;
	for (int i = 0; i < rounds; i++) {
		clock_gettime(CLOCK_MONOTONIC, &t);
		sum += t.tv_nsec;
	}
	return sum;
}

int main(int argc, char **argv)
{
	long sum = 0;
	work_begin(argc, argv);
	while (work_left())
		sum += vdso_loop(100000);
	return sum == 1;
}
