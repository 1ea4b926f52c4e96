// Uses the CPU under a chain of exactly 100 calls that alternate between two
// functions; built without frame pointers. After argv[1] seconds, a signal ends
// it with status 7, so that the burning loop itself calls nothing.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static volatile unsigned long sink;
// Never set. Without it, the loop would have no end, and the compiler would
// move the call of burn() as cold code into a function of its own.
static volatile int stop;

__attribute__((noinline)) static unsigned long burn(void)
{
	while (!stop)
		sink = sink * 6364136223846793005UL + 1442695040888963407UL;
	return sink;
}

unsigned long odd(unsigned depth);

// The code after each call keeps it from becoming a jump.
__attribute__((noinline)) unsigned long even(unsigned depth)
{
	unsigned long r = depth == 0 ? burn() : odd(depth - 1);
	return r + sink;
}

__attribute__((noinline)) unsigned long odd(unsigned depth)
{
	unsigned long r = depth == 0 ? burn() : even(depth - 1);
	return r ^ sink;
}

static void finish(int signal)
{
	(void)signal;
	_exit(7);
}

int main(int argc, char **argv)
{
	signal(SIGALRM, finish);
	alarm(argc > 1 ? (unsigned)atoi(argv[1]) : 5);
	return (int)even(99);
}
