/*
 * Replaces its own binary on disk and goes on: renames the file given as
 * argv[2] over itself, or, without one, deletes itself. -DNEW builds the
 * replacement, whose functions lie elsewhere under other names.
 */
#include "work.h"

#ifdef NEW
NOINLINE unsigned long new_padding(unsigned long n) { return burn(n) * 3; }
NOINLINE unsigned long new_spin(unsigned long n) { return burn(n) + new_padding(n); }
NOINLINE unsigned long new_outer(unsigned long n) { return new_spin(n) + 1; }
int main(void) { return new_outer(1) == 1; }
#else
NOINLINE unsigned long old_spin(unsigned long n) { return burn(n) + 1; }
NOINLINE unsigned long old_outer(unsigned long n) { return old_spin(n) + 1; }

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	if (argc > 2 ? rename(argv[2], argv[0]) : unlink(argv[0]))
		return 3;
	while (work_left())
		sum += old_outer(2 * MILLISECOND);
	return sum == 1;
}
#endif
