/*
 * With -DLIBRARY: two functions of CUDA's driver that wait, as drivers do: asleep, and
 * spinning. Else a program that calls them, and sleeps by itself between. It prints bounds of
 * what can be recorded of each call. `asleep` is the time off a CPU. `spinning` has the time on
 * it too, but not what the host of a virtual machine stole. The others are the whole calls.
 */
#include <stdio.h>
#include <time.h>

#include "on_cpu.h"

#define NOINLINE __attribute__((noinline))
#define MILLISECOND 1000000L

static long at(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long now(void) { return at(CLOCK_MONOTONIC); }

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

static long asleep_ns, asleep_or_not_ns, spinning_ns, spinning_or_stolen_ns, between_ns, busy_ns;

/* Time in which the thread was not on a CPU. */
static long idle(void) { return now() - on_cpu(); }

/* Time in which the thread ran: without what the host of a virtual machine stole. */
static long ran(void) { return at(CLOCK_THREAD_CPUTIME_ID); }

static NOINLINE void asleep(void)
{
	long begin_idle = idle(), begin = now();
	cuCtxSynchronize();
	asleep_or_not_ns += now() - begin;
	asleep_ns += idle() - begin_idle;
}

static NOINLINE void spinning(void)
{
	long begin_known = idle() + ran(), begin = now();
	cuStreamSynchronize(NULL);
	spinning_or_stolen_ns += now() - begin;
	spinning_ns += idle() + ran() - begin_known;
}

static NOINLINE void between(void)
{
	long begin = idle();
	nap(10 * MILLISECOND);
	between_ns += idle() - begin;
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
	/* Opens the clock, which waits, too. */
	on_cpu();
	for (int i = 0; i < 80; i++) {
		asleep();
		between();
		spinning();
		busy();
	}
	printf("asleep %ld\nasleep_or_not %ld\nspinning %ld\nspinning_or_stolen %ld\n", asleep_ns,
	       asleep_or_not_ns, spinning_ns, spinning_or_stolen_ns);
	printf("between %ld\nbusy %ld\n", between_ns, busy_ns);
	return 0;
}
#endif
