/*
 * Short processes. "fork" forks children that work a little and exit, at RATE
 * at most. "exec" forks, executes the program given as fourth argument and
 * waits, as fast as it goes, from two parents, COUNT each. Prints "warm" when 30 %
 * are over, and their CPU time and its own at the end.
 *   storm fork COUNT RATE | storm exec COUNT 0 PROGRAM
 */
#include "work.h"

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static volatile unsigned long sink;

static double now(void)
{
	return cpu_seconds(CLOCK_MONOTONIC);
}

static NOINLINE void child_work(void)
{
	sink += burn(MILLISECOND / 20);
}

/* How far a storm is. */
static void tell(long n, long count)
{
	if (n == count * 3 / 10) {
		puts("warm");
		fflush(stdout);
	}
}

static int fork_storm(long count, double rate)
{
	double start = now();
	long n = 0;
	while (n < count) {
		/* At random: a storm in step with the clock of a profiler would be met
		 * too often, or too seldom. */
		if (n > (now() - start) * rate * (0.9 + 0.2 * drand48())) {
			usleep(50 + lrand48() % 400);
			continue;
		}
		pid_t pid = fork();
		if (pid == 0) {
			child_work();
			_exit(0);
		}
		if (pid < 0)
			return 1;
		tell(++n, count);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	while (waitpid(-1, NULL, 0) > 0)
		;
	return 0;
}

static int exec_storm(long count, char *program, int is_twin)
{
	for (long n = 1; n <= count; n++) {
		pid_t pid = fork();
		if (pid == 0) {
			execl(program, program, (char *)NULL);
			_exit(127);
		}
		int status;
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return 1;
		if (!is_twin)
			tell(n, count);
	}
	return 0;
}

/* CPU time of those that were waited for, or of this process, in nanoseconds. */
static long cpu_ns(int whose)
{
	struct rusage use;
	getrusage(whose, &use);
	return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000000L +
	       (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1000L;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	long count = atol(argv[2]);
	printf("pid %d\n", (int)getpid());
	fflush(stdout);
	int failed, status = 0;
	if (!strcmp(argv[1], "fork")) {
		failed = fork_storm(count, atof(argv[3]));
	} else {
		if (argc < 5)
			return 2;
		pid_t twin = fork();
		failed = twin < 0 || exec_storm(count, argv[4], twin == 0);
		if (twin == 0)
			return failed;
		if (waitpid(twin, &status, 0) != twin)
			return 1;
	}
	printf("cpu_ns %ld\n", cpu_ns(RUSAGE_SELF) + cpu_ns(RUSAGE_CHILDREN));
	return failed || status != 0;
}
