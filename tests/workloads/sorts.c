/* Calls of the C library that call back, copy and format. */
#include "work.h"

#include <stdio.h>
#include <string.h>

static int less(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

NOINLINE unsigned long sort_all(unsigned seed)
{
	static int values[4000];
	static char from[1 << 16], to[1 << 16];
	char text[64];
	unsigned long sum = 0;
	for (int i = 0; i < 4000; i++)
		values[i] = (seed = seed * 1103515245 + 12345) >> 8;
	qsort(values, 4000, sizeof(int), less);
	for (int i = 0; i < 4000; i += 40)
		sum += snprintf(text, sizeof(text), "%d %f %s", values[i], i / 3.0, "text");
	for (int i = 0; i < 20; i++) {
		memcpy(to, from, sizeof(from));
		memset(from, i + to[i], sizeof(from));
	}
	return sum;
}

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	while (work_left())
		sum += sort_all(sum);
	return sum == 1;
}
