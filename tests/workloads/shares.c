/* Functions with known shares of the time; one of them can be made slower:
 * shares [FACTOR [ROUNDS]]. A round is some 20 us, far from any period of sampling.
 * Prints nothing. */
#include <stdint.h>
#include <stdlib.h>

static volatile uint64_t sink;

#define WORK(name)                                                             \
	__attribute__((noinline)) static void name(long n)                     \
	{                                                                      \
		uint64_t x = sink + 1;                                         \
		for (long i = 0; i < n; i++)                                   \
			x = x * 6364136223846793005ull + i;                    \
		sink = x;                                                      \
	}

WORK(parse)
WORK(hash)
WORK(lookup)
WORK(encode)
WORK(check)
WORK(emit)

int main(int argc, char **argv)
{
	double factor = argc > 1 ? atof(argv[1]) : 1;
	long rounds = argc > 2 ? atol(argv[2]) : 200000;

	for (long round = 0; round < rounds; round++) {
		parse(6000);
		hash(4000);
		lookup((long)(3000 * factor));
		encode(2500);
		check(1500);
		emit(1000);
	}
	return 0;
}
