/*
 * Short processes: "fork" forks children that work a little and exit, at about
 * a rate; "exec" forks, executes the program given as fourth argument and
 * waits, as fast as it goes, from two parents. Runs for a span of wall time and
 * prints how many there were, and their CPU time and its own.
 *   storm fork SECONDS RATE | storm exec SECONDS 0 PROGRAM
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

static long fork_storm(double seconds, double rate)
{
	double start = now();
	long n = 0;
	while (now() < start + seconds) {
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
			return -1;
		n++;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	while (waitpid(-1, NULL, 0) > 0)
		;
	return n;
}

static long exec_storm(double seconds, char *program)
{
	double start = now();
	long n = 0;
	while (now() < start + seconds) {
		pid_t pid = fork();
		if (pid == 0) {
			execl(program, program, (char *)NULL);
			_exit(127);
		}
		int status;
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return -1;
		n++;
	}
	return n;
}

/* CPU time of those that were waited for, or of this process, in nanoseconds. */
static long cpu_ns(int whose)
{
	struct rusage use;
	getrusage(whose, &use);
	return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000000L +
	       (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1000L;
}

static void print_end(long processes)
{
	printf("processes %ld\ncpu_ns %ld\n", processes,
	       cpu_ns(RUSAGE_SELF) + cpu_ns(RUSAGE_CHILDREN));
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	double seconds = atof(argv[2]);
	printf("pid %d\n", (int)getpid());
	fflush(stdout);
	if (!strcmp(argv[1], "fork")) {
		long n = fork_storm(seconds, atof(argv[3]));
		print_end(n);
		return n < 0;
	}
	int pipes[2];
	long n, other = -1;
	if (argc < 5 || pipe(pipes))
		return 2;
	pid_t twin = fork();
	n = exec_storm(seconds, argv[4]);
	if (twin == 0)
		return write(pipes[1], &n, sizeof n) != sizeof n;
	if (read(pipes[0], &other, sizeof other) != sizeof other)
		return 1;
	waitpid(twin, NULL, 0);
	print_end(n + other);
	return n < 0 || other < 0;
}
