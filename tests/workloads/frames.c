/*
 * Frames that compilers make rarely: realigned stack (its CFA is an expression
 * through the saved argument pointer), alloca and variable arrays, frames over
 * 32 KiB.
 */
#include "known.h"
#include "work.h"

#include <alloca.h>

NOINLINE unsigned long spin(unsigned long n)
{
	return burn(2 * MILLISECOND) + n;
}

NOINLINE unsigned long with_alloca(unsigned long n)
{
	volatile char *p = alloca(n * 16);
	p[0] = 1;
	return spin(n) + p[0];
}

NOINLINE unsigned long with_big_frame(unsigned long n)
{
	volatile char big[40000];
	big[n] = 1;
	return with_alloca(n) + big[n];
}

NOINLINE unsigned long with_array(unsigned long n)
{
	volatile unsigned long a[n];
	a[n - 1] = n;
	return with_big_frame(n) + a[n - 1];
}

NOINLINE unsigned long with_alignment(unsigned long n)
{
	volatile unsigned long wide[16] __attribute__((aligned(64))) = { n };
	volatile char *p = alloca(n);
	p[0] = 1;
	return with_array(n) + wide[0] + p[0];
}

__attribute__((force_align_arg_pointer)) NOINLINE unsigned long
with_realigned_entry(unsigned long n)
{
	return with_alignment(n) + 1;
}

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	wait_until_known();
	work_begin(argc, argv);
	while (work_left())
		sum += with_realigned_entry(40);
	return sum == 1;
}
