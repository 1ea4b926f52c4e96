/*
 * Loads one shared object, works in it, unloads it, loads the other, which
 * often gets the same addresses: dlopen and dlclose while sampled. The second
 * argument is how many milliseconds of CPU each is used.
 * -DPLUGIN=one or two builds the shared objects, found in argv[3] and argv[4].
 */
#include "work.h"

#include <dlfcn.h>

#ifdef PLUGIN
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
static NOINLINE unsigned long JOIN(spin_, PLUGIN)(unsigned long n)
{
	return burn(n) + 1;
}

unsigned long JOIN(plugin_, PLUGIN)(unsigned long n)
{
	return JOIN(spin_, PLUGIN)(n) + 1;
}
#else
typedef unsigned long plugin(unsigned long);

static NOINLINE unsigned long use(plugin *f, double seconds)
{
	double end = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) + seconds;
	unsigned long sum = 0;
	while (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) < end)
		sum += f(MILLISECOND / 2);
	return sum;
}

static NOINLINE unsigned long use_one(plugin *f, double s) { return use(f, s) + 1; }
static NOINLINE unsigned long use_two(plugin *f, double s) { return use(f, s) + 2; }

int main(int argc, char **argv)
{
	unsigned long sum = 0, loads = 0;
	if (argc < 5)
		return 2;
	double span = atof(argv[2]) / 1000;
	work_begin(argc, argv);
	for (int which = 0; work_left(); which = !which, loads++) {
		void *library = dlopen(argv[3 + which], RTLD_NOW);
		plugin *f = library ? dlsym(library, which ? "plugin_two" : "plugin_one") : NULL;
		if (!f)
			return 3;
		sum += which ? use_two(f, span) : use_one(f, span);
		dlclose(library);
	}
	printf("loads %lu\n", loads);
	return sum == 1;
}
#endif
