/*
 * Works in one function, with the name of -DNAME. Two of these with one build id
 * are false twins: what is known of one is wrong for the other. With a FIFO as second
 * argument it works when somebody opens that for writing.
 */
#include <fcntl.h>

#include "work.h"

#ifdef LONGER
/* Moves everything behind it. */
NOINLINE UNUSED unsigned long longer(unsigned long n)
{
	return burn(n) * burn(n + 1) + burn(n + 2) * burn(n + 3);
}
#endif

NOINLINE unsigned long NAME(unsigned long n)
{
	return burn(n) + 1;
}

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	if (argc > 2)
		close(open(argv[2], O_RDONLY));
	while (work_left())
		sum += NAME(2 * MILLISECOND);
	return sum == 1;
}
