/* One real function with two inlined into it, template and lambda included. */
#include "work.h"

template <typename T>
static inline __attribute__((always_inline)) unsigned long innermost(T n)
{
	return burn(n);
}

static inline __attribute__((always_inline)) unsigned long middle(unsigned long n)
{
	return innermost<unsigned long>(n) + 1;
}

NOINLINE unsigned long outermost(unsigned long n)
{
	return middle(n) + 1;
}

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	while (work_left())
		sum += outermost(8 * MILLISECOND);
	return sum == 1;
}
