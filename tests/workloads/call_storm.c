/*
 * Calls a function that launches: `call_storm RATE SECONDS [RATE SECONDS]...` makes RATE
 * calls per second for SECONDS seconds, one pair after the other; rate 0 is as fast as it
 * can. It prints after each pair how many calls there were. With -DRUNTIME it is the
 * library that has the function.
 */
#ifdef RUNTIME
int cuInit(unsigned flags)
{
	return (int)(flags & 0);
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
		   unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
		   void **extra)
{
	(void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
	(void)shared, (void)stream, (void)parameters, (void)extra;
	return 0;
}
#else
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int cuInit(unsigned flags);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		   void *, void **, void **);

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
	if (cuInit(0))
		return 1;
	for (int i = 1; i + 1 < argc; i += 2) {
		double rate = atof(argv[i]), begin = now(), end = begin + atof(argv[i + 1]);
		unsigned long calls = 0;
		while (now() < end) {
			cuLaunchKernel(&calls, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
			calls++;
			struct timespec pause = { 0, 1000000 };
			while (rate > 0 && (double)calls > rate * (now() - begin))
				nanosleep(&pause, 0);
		}
		printf("%lu\n", calls);
		fflush(stdout);
	}
	return 0;
}
#endif
