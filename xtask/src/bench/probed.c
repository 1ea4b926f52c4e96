/*
 * A stand-in for libcuda.so.1 (-DLIBRARY) and a program that calls it.
 *
 *   cost DEPTH BATCHES   ns per call of each function, DEPTH calls below main:
 *                        one line for each batch, `FUNCTION NS`.
 *   rate RATE SECONDS FRESH  launches at a steady rate, with FRESH=1 each from a
 *                        call path of its own. Prints how many were made.
 */
#include <stdint.h>

#ifdef LIBRARY
volatile uint64_t count;

/* Real functions of a driver call others, and so begin with a push. */
__attribute__((noipa)) static int work(const void *object, unsigned size)
{
	count += size + (object != 0);
	return 0;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)
{
	(void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)parameters, (void)extra;
	int failed = work(f, gx);
	return failed + work(stream, gx);
}

int cuEventRecord(void *event, void *stream)
{
	int failed = work(event, 1);
	return failed + work(stream, 1);
}
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		   void *, void **, void **);
int cuEventRecord(void *, void *);

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

enum { CALLS = 2000 };

static void measure(int launch)
{
	uint64_t begun = now();
	for (int i = 0; i < CALLS; i++) {
		if (launch)
			cuLaunchKernel((void *)1, (unsigned)i, 1, 1, 32, 1, 1, 0, (void *)2, 0, 0);
		else
			cuEventRecord((void *)3, (void *)2);
	}
	printf("%s %.1f\n", launch ? "cuLaunchKernel" : "cuEventRecord",
	       (double)(now() - begun) / CALLS);
}

__attribute__((noinline)) static int below(int depth, int launch)
{
	volatile int room[4] = {depth};
	if (depth > 0)
		return below(depth - 1, launch) + room[0];
	measure(launch);
	return room[0];
}

/* One of 2^DEPTH call paths: bit by bit the one or the other. */
enum { PATH = 27 };
static int path(uint32_t bits, int depth);
#define STEP(name)                                                                           \
	__attribute__((noinline)) static int name(uint32_t bits, int depth)                  \
	{                                                                                    \
		volatile int room[2] = {depth};                                              \
		return path(bits, depth) + room[0];                                          \
	}
STEP(left)
STEP(right)
static inline __attribute__((always_inline)) int path(uint32_t bits, int depth)
{
	if (depth == 0)
		return cuLaunchKernel((void *)1, bits, 1, 1, 32, 1, 1, 0, (void *)2, 0, 0);
	return bits >> (depth & 31) & 1 ? left(bits, depth - 1) : right(bits, depth - 1);
}

static uint64_t launches(double rate, double seconds, int fresh)
{
	uint64_t begun = now(), n = 0;
	uint64_t end = begun + (uint64_t)(seconds * 1e9);
	for (uint64_t t = begun; t < end; t = now())
		for (uint64_t due = (uint64_t)((double)(t - begun) * 1e-9 * rate); n < due; n++)
			left(fresh ? (uint32_t)n << 1 : 0, PATH);
	return n;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	/* Whoever attaches to the library has the time to. */
	usleep(700000);
	if (!strcmp(argv[1], "cost"))
		for (int i = 0; i < 2 * atoi(argv[3]); i++)
			below(atoi(argv[2]), i & 1);
	else
		printf("launches %llu\n",
		       (unsigned long long)launches(atof(argv[2]), atof(argv[3]),
						    argc > 4 && atoi(argv[4])));
	return 0;
}
#endif
