/*
 * Two static programs at the same fixed addresses that exec each other: `turn_a ROUNDS
 * OTHER`. -DNAME names the function that works, some milliseconds a turn; -DLONGER moves
 * it, so that what is known of one is wrong for the other.
 */
#include "work.h"

#ifdef LONGER
NOINLINE UNUSED unsigned long longer(unsigned long n)
{
	return burn(n) * burn(n + 1) + burn(n + 2) * burn(n + 3);
}
#endif

NOINLINE unsigned long NAME(unsigned long n)
{
#ifdef LONGER
	volatile unsigned long pad[21] = { n };
#else
	volatile unsigned long pad[5] = { n };
#endif
	return n == 0 ? burn(6 * MILLISECOND) : NAME(n - 1) + pad[0];
}

int main(int argc, char **argv)
{
	char rounds[16];
	long left = argc > 2 ? atol(argv[1]) : 0;
	if (left <= 0 || NAME(10) == 1)
		return 0;
	snprintf(rounds, sizeof(rounds), "%ld", left - 1);
	execl(argv[2], argv[2], rounds, argv[0], NULL);
	return 1;
}
