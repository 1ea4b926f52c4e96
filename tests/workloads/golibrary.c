// Loads a library of Go (argument 1) and calls it: it spins, makes garbage, and calls back.
// Argument 2: seconds of CPU time.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
static long (*spin)(long);
static void (*fill)(long);
static void (*through)(void (*)(void));

static double used(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

// No call here is the last thing that its function does.
APART void called_back(void) { spin(2000000); __asm__ volatile(""); }
APART void calls_spin(void) { spin(4000000); __asm__ volatile(""); }
APART void calls_fill(void) { fill(20000); __asm__ volatile(""); }
APART void calls_through(void) { through(called_back); __asm__ volatile(""); }

int main(int argc, char **argv)
{
	void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW) : 0;
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	spin = dlsym(library, "GoSpin");
	fill = dlsym(library, "GoFill");
	through = dlsym(library, "GoThrough");
	printf("pid %d\n", getpid());
	fflush(stdout);
	for (double end = used() + atof(argv[2]); used() < end;) {
		calls_spin();
		calls_fill();
		calls_through();
	}
	return 0;
}
