/* Starts children by vfork for some seconds of its own CPU time, and theirs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "on_cpu.h"

static volatile uint64_t sum;

__attribute__((noinline)) static void child_work(void)
{
	for (uint64_t i = 0; i < 100000; i++)
		sum += i * i;
}

__attribute__((noinline)) static void spawn_one(void)
{
	int status;
	pid_t child = vfork();
	if (child == 0) {
		child_work();
		_exit(0);
	}
	waitpid(child, &status, 0);
}

int main(int count, char **arguments)
{
	printf("pid %d\n", getpid());
	fflush(stdout);
	long end = on_cpu() + (long)(1e9 * atof(arguments[count - 1]));
	while (on_cpu() < end)
		spawn_one();
	return 0;
}
