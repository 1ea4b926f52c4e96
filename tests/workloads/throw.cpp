/*
 * Throws and catches, across one frame and across thirty with clean-ups, with
 * some work before each throw. While libgcc installs the landing pad's frame it
 * overwrites the saved registers and return address that its own unwind data
 * points to. No stack walker gets these few instructions right. Therefore the
 * program does other work, too.
 */
#include "work.h"

static volatile unsigned long sink;

struct Guard {
	unsigned long n;
	explicit Guard(unsigned long m) : n(m) {}
	~Guard() { sink = sink + n; }
};

NOINLINE unsigned long thrower(int n)
{
	sink = burn(n > 0 ? 20000 : 3000);
	if (n >= 0)
		throw n;
	return 1;
}

NOINLINE unsigned long deep(int n)
{
	Guard guard(n);
	if (n == 1)
		return thrower(n) + guard.n;
	return deep(n - 1) + guard.n;
}

NOINLINE void catch_near()
{
	try {
		sink = sink + thrower(0);
	} catch (int n) {
		sink = sink + n;
	}
}

NOINLINE void catch_far()
{
	try {
		sink = sink + deep(30);
	} catch (int n) {
		sink = sink + n;
	}
}

int main(int argc, char **argv)
{
	work_begin(argc, argv);
	while (work_left())
		for (int i = 0; i < 20; i++) {
			for (int j = 0; j < 20; j++)
				catch_near();
			catch_far();
		}
	return 0;
}
