/* Is busy for some milliseconds, at several depths, in a child if that is asked for. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

__attribute__((noinline)) static unsigned deep(int depth, long until)
{
	volatile unsigned sum = (unsigned)depth;
	if (depth > 0)
		return deep(depth - 1, until) + sum;
	while (now_us() < until)
		sum += 1;
	return sum;
}

int main(int argc, char **argv)
{
	long end = now_us() + 1000 * (argc > 1 ? atol(argv[1]) : 100);
	if (argc > 2 && !strcmp(argv[2], "child") && fork()) {
		wait(0);
		return 0;
	}
	unsigned sum = 0;
	for (int depth = 1; now_us() < end; depth = depth % 24 + 1)
		sum += deep(depth, now_us() + 2000);
	return sum == 1;
}
