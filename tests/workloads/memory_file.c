/*
 * Works in code that lies in a memory file (memfd_create), by its second argument. "program" executes
 * itself from one. "library FILE" loads a library from one, which is this source with -DLIBRARY.
 * "generated" generates code there, as xbyak does.
 */
#include "work.h"

#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>

static volatile unsigned long sink;

NOINLINE unsigned long inner(unsigned long n) { return burn(n) + 1; }
NOINLINE unsigned long outer(unsigned long n) { return inner(n) + 2; }

#ifndef LIBRARY
static int memory_copy(const char *path)
{
	char buffer[65536];
	ssize_t n;
	int from = open(path, O_RDONLY), to = memfd_create("a copy", 0);
	while ((n = read(from, buffer, sizeof buffer)) > 0)
		if (write(to, buffer, n) != n)
			exit(2);
	close(from);
	return to;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "program";
	unsigned long (*work)(unsigned long) = outer;
	if (!strcmp(mode, "program") && argc < 4) {
		char *args[] = { argv[0], argv[1], "program", "again", NULL };
		char *environment[] = { NULL };
		fexecve(memory_copy("/proc/self/exe"), args, environment);
		return 2;
	}
	if (!strcmp(mode, "library")) {
		char path[64];
		snprintf(path, sizeof path, "/proc/self/fd/%d", memory_copy(argv[3]));
		void *library = dlopen(path, RTLD_NOW);
		if (!library)
			return 2;
		work = (unsigned long (*)(unsigned long))dlsym(library, "outer");
	}
	if (!strcmp(mode, "generated")) {
		/* push rbp; mov rbp, rsp; mov rcx, rdi; dec rcx; jnz -5; pop rbp; ret */
		static const char code[] = "\x55\x48\x89\xe5\x48\x89\xf9"
					   "\x48\xff\xc9\x75\xfb\x5d\xc3";
		int file = memfd_create("xbyak", 0);
		if (write(file, code, sizeof code) < 0 || ftruncate(file, 4096))
			return 2;
		void *at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
		work = (unsigned long (*)(unsigned long))at;
	}
	work_begin(argc, argv);
	while (work_left())
		sink += work(4 * MILLISECOND);
	return 0;
}
#endif
