/*
 * Short processes: "fork" forks children that work a little and exit, paced to
 * a rate; "exec" forks, executes the program given as fourth argument and
 * waits, as fast as it goes, from two parents. Runs for a span of wall time and
 * prints how many there were.
 *   storm fork SECONDS RATE | storm exec SECONDS 0 PROGRAM
 */
#include "work.h"

#include <spawn.h>
#include <sys/prctl.h>
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
		if (n > (now() - start) * rate) {
			usleep(200);
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

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	double seconds = atof(argv[2]);
	printf("pid %d\n", (int)getpid());
	fflush(stdout);
	if (!strcmp(argv[1], "fork")) {
		long n = fork_storm(seconds, atof(argv[3]));
		printf("processes %ld\n", n);
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
	printf("processes %ld\n", n + other);
	return n < 0 || other < 0;
}
