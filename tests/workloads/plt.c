/*
 * Calls tiny functions of a shared object in a loop: much of the time is spent
 * in the procedure linkage table. -DLIBRARY builds the shared object.
 */
#include "work.h"

unsigned long plt_a(unsigned long), plt_b(unsigned long);
unsigned long plt_c(unsigned long), plt_d(unsigned long);

#ifdef LIBRARY
unsigned long plt_a(unsigned long n) { return n + 1; }
unsigned long plt_b(unsigned long n) { return n ^ 2; }
unsigned long plt_c(unsigned long n) { return n + 3; }
unsigned long plt_d(unsigned long n) { return n ^ 4; }
#else
static NOINLINE unsigned long plt_loop(unsigned long n)
{
	for (int i = 0; i < 200000; i++)
		n = plt_d(plt_c(plt_b(plt_a(n))));
	return n;
}

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	while (work_left())
		sum += plt_loop(sum);
	return sum == 1;
}
#endif
