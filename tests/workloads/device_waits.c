/*
 * With -DLIBRARY: two functions of CUDA's driver that wait, as drivers do: asleep, and
 * spinning. Else a program that calls them, and sleeps by itself between; it says how long
 * each took.
 */
#include <stdio.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))
#define MILLISECOND 1000000L

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void nap(long ns)
{
	struct timespec t = {0, ns};
	nanosleep(&t, NULL);
}

#ifdef LIBRARY
int cuCtxSynchronize(void)
{
	nap(20 * MILLISECOND);
	return 0;
}

int cuStreamSynchronize(void *stream)
{
	for (long until = now() + 20 * MILLISECOND; now() < until;)
		;
	return stream != NULL;
}
#else
int cuCtxSynchronize(void);
int cuStreamSynchronize(void *stream);

static long asleep_ns, spinning_ns, between_ns, busy_ns;

static NOINLINE void asleep(void)
{
	long begin = now();
	cuCtxSynchronize();
	asleep_ns += now() - begin;
}

static NOINLINE void spinning(void)
{
	long begin = now();
	cuStreamSynchronize(NULL);
	spinning_ns += now() - begin;
}

static NOINLINE void between(void)
{
	long begin = now();
	nap(10 * MILLISECOND);
	between_ns += now() - begin;
}

static NOINLINE void busy(void)
{
	long begin = now();
	while (now() < begin + 10 * MILLISECOND)
		;
	busy_ns += now() - begin;
}

int main(void)
{
	for (int i = 0; i < 80; i++) {
		asleep();
		between();
		spinning();
		busy();
	}
	printf("asleep %ld\nspinning %ld\nbetween %ld\nbusy %ld\n", asleep_ns, spinning_ns,
	       between_ns, busy_ns);
	return 0;
}
#endif
