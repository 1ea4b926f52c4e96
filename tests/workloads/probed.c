/*
 * For return probes set from outside: probed_outer calls probed_inner (two
 * pending at once), probed_again calls itself ten deep. With "offsets" as
 * second argument it prints where in the file each function lies and ends.
 */
#include "work.h"

static NOINLINE unsigned long probed_leaf(unsigned long n)
{
	return burn(2 * MILLISECOND) + n;
}

NOINLINE unsigned long probed_inner(unsigned long n)
{
	return probed_leaf(n) + 1;
}

NOINLINE unsigned long probed_outer(unsigned long n)
{
	return probed_inner(n) + 1;
}

NOINLINE unsigned long probed_again(unsigned long n)
{
	volatile unsigned long pad[3] = { n };
	if (n <= 1)
		return probed_leaf(n) + pad[0];
	return probed_again(n - 1) + pad[0];
}

/* Offset in the file of an address of this program, from /proc/self/maps. */
static unsigned long file_offset(const void *code)
{
	unsigned long start, end, offset, at = (unsigned long)code, found = 0;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 &&
		    start <= at && at < end)
			found = at - start + offset;
	if (maps)
		fclose(maps);
	return found;
}

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	if (argc > 2 && !strcmp(argv[2], "offsets")) {
		printf("probed_inner %lu\n", file_offset((void *)probed_inner));
		printf("probed_outer %lu\n", file_offset((void *)probed_outer));
		printf("probed_again %lu\n", file_offset((void *)probed_again));
		return 0;
	}
	work_begin(argc, argv);
	while (work_left()) {
		sum += probed_outer(sum);
		sum += probed_again(10);
	}
	return sum == 1;
}
