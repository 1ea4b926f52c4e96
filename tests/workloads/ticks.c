/* Five threads on one CPU, each busy for 1.7 ms in its own place of each hundredth of a second,
 * for a given number of seconds. Prints the CPU time of each in nanoseconds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TICK 10000000LL
#define BUSY 1700000LL

static int64_t end;
static int64_t used[5];

static int64_t clock_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void work(int place)
{
	int64_t next = clock_of(CLOCK_MONOTONIC) / TICK * TICK + TICK + place * TICK / 5;

	while (next < end) {
		struct timespec at = { next / 1000000000LL, next % 1000000000LL };

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		while (clock_of(CLOCK_MONOTONIC) < next + BUSY)
			;
		next += TICK;
	}
	used[place] = clock_of(CLOCK_THREAD_CPUTIME_ID);
}

#define PLACE(n)                                                          \
	static __attribute__((noinline)) void *place##n(void *argument)       \
	{                                                                     \
		work(n);                                                          \
		return argument;                                                  \
	}

PLACE(0)
PLACE(1)
PLACE(2)
PLACE(3)
PLACE(4)

int main(int count, char **arguments)
{
	void *(*places[5])(void *) = { place0, place1, place2, place3, place4 };
	pthread_t threads[5];
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	if (sched_setaffinity(0, sizeof cpus, &cpus))
		return 1;
	end = clock_of(CLOCK_MONOTONIC) + (count > 1 ? atoll(arguments[1]) : 10) * 1000000000LL;
	for (int n = 0; n < 5; n++)
		if (pthread_create(&threads[n], NULL, places[n], NULL))
			return 1;
	for (int n = 0; n < 5; n++)
		pthread_join(threads[n], NULL);
	for (int n = 0; n < 5; n++)
		printf("place%d %lld\n", n, (long long)used[n]);
	return 0;
}
