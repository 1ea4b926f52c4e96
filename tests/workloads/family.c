/*
 * Waits for a line on stdin, forks a child that works in child_spin, works in
 * parent_spin itself, and waits for the child. It tests `-p PID`, which follows
 * children, and processes that run before aiprof starts.
 */
#include "work.h"

#include <sys/wait.h>

static volatile unsigned long sink;

static NOINLINE void parent_spin(void) { sink += burn(2 * MILLISECOND); }
static NOINLINE void child_spin(void) { sink += burn(2 * MILLISECOND); }

int main(int argc, char **argv)
{
	char line[16];
	work_begin(argc, argv);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	pid_t child = fork();
	if (child == 0) {
		work_begin(argc, argv);
		while (work_left())
			child_spin();
		return 0;
	}
	while (work_left())
		parent_spin();
	waitpid(child, NULL, 0);
	return 0;
}
