/*
 * What ordinary C programs do with their library: sorting with callbacks, formatting,
 * parsing, copying, searching, regular expressions, allocation, mathematics.
 */
#include "work.h"

#include <math.h>
#include <regex.h>

#define NUMBERS 3000
#define WORDS 600

static unsigned seed = 1;

static unsigned next(void)
{
	return seed = seed * 1103515245 + 12345;
}

static int by_value(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;
	return x < y ? -1 : x > y;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static NOINLINE double words(regex_t *expression)
{
	static char *list[WORDS];
	double sum = 0;
	for (int i = 0; i < WORDS; i++) {
		char text[80];
		snprintf(text, sizeof(text), "%u-%x-%f", next(), next(), next() / 3.0);
		list[i] = strdup(text);
		sum += strtod(text + 3, NULL) + sin(next()) + pow(next() % 7, 1.3);
	}
	qsort(list, WORDS, sizeof(*list), by_text);
	for (int i = 0; i < WORDS; i++) {
		regmatch_t match[2];
		sum += regexec(expression, list[i], 2, match, 0);
		sum += strlen(list[i]) + (strstr(list[i], "99-") != NULL);
		free(list[i]);
	}
	return sum;
}

static NOINLINE double numbers(void)
{
	static long list[NUMBERS];
	static char bytes[1 << 14];
	double sum = 0;
	for (int i = 0; i < NUMBERS; i++)
		list[i] = next();
	qsort(list, NUMBERS, sizeof(*list), by_value);
	sum += bsearch(list + 5, list, NUMBERS, sizeof(*list), by_value) != NULL;
	memset(bytes, next(), sizeof(bytes));
	memcpy(bytes + sizeof(bytes) / 2, bytes, sizeof(bytes) / 2);
	sum += memcmp(bytes, bytes + sizeof(bytes) / 2, sizeof(bytes) / 2);
	for (int i = 0; i < 200; i++)
		sum += exp(next() % 5) + log(next() + 1.0) + fmod(next(), 3.3);
	return sum;
}

int main(int argc, char **argv)
{
	double sum = 0;
	regex_t expression;

	work_begin(argc, argv);
	regcomp(&expression, "a[b-y]*z|([0-9]+-)+9|foo(bar)+", REG_EXTENDED);
	while (work_left())
		sum += words(&expression) + numbers();
	printf("%f\n", sum);
	return 0;
}
