/*
 * 100 frames that alternate between two shared objects, without frame
 * pointers. Built three times: -DHOP_A and -DHOP_B as libraries, plain as main.
 * Each hop's frame has another size, so that no fixed stride is right.
 */
#include "work.h"

unsigned long hop_a(unsigned long n);
unsigned long hop_b(unsigned long n);
unsigned long hop_leaf(unsigned long n);

#if defined HOP_A
unsigned long hop_a(unsigned long n)
{
	volatile unsigned long pad[9] = { n };
	return hop_b(n - 1) + pad[0];
}
#elif defined HOP_B
NOINLINE unsigned long hop_leaf(unsigned long n)
{
	return burn(MILLISECOND) + n;
}

unsigned long hop_b(unsigned long n)
{
	volatile unsigned long pad[3] = { n };
	if (n == 1)
		return hop_leaf(n) + pad[0];
	return hop_a(n - 1) + pad[0];
}
#else
int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	while (work_left())
		sum += hop_a(100);
	return sum == 1;
}
#endif
