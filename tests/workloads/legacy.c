/*
 * A function with a name as older Rust compilers mangle it (a hash at the end),
 * which this one no longer makes.
 */
#include "work.h"

NOINLINE unsigned long work(unsigned long n)
	__asm__("_ZN7foreign5Outer4work17h0123456789abcdefE");

NOINLINE unsigned long work(unsigned long n)
{
	return burn(n);
}

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	while (work_left())
		sum += work(2 * MILLISECOND);
	return sum == 1;
}
