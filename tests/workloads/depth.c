/*
 * A recursion of the depth given as second argument, in one file: for static
 * programs, mount namespaces (with -DLIBRARY / -DPROGRAM as two files) and
 * stacks beyond the frame limit.
 */
#include "work.h"

unsigned long down(unsigned long n);

#ifndef PROGRAM
NOINLINE unsigned long bottom(unsigned long n)
{
	return burn(2 * MILLISECOND) + n;
}

NOINLINE unsigned long down(unsigned long n)
{
	volatile unsigned long pad[5] = { n };
	if (n <= 1)
		return bottom(n) + pad[0];
	return down(n - 1) + pad[0];
}
#endif

#ifndef LIBRARY
int main(int argc, char **argv)
{
	unsigned long sum = 0, depth = argc > 2 ? strtoul(argv[2], NULL, 0) : 10;
	work_begin(argc, argv);
	while (work_left())
		sum += down(depth);
	return sum == 1;
}
#endif
