/*
 * Generates two functions with frame-pointer prologues at run time, as a JIT
 * compiler does, and names them in /tmp/perf-PID.map:
 *   jit_outer calls jit_inner; jit_inner spins, then calls back into C.
 * The second argument "corrupt" adds lines to the map that are no map lines.
 * With "nomap" no map is written. With "forked" a child does the work, which has
 * no map of its own.
 */
#include "known.h"
#include "work.h"

#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

static volatile unsigned long sink;

static NOINLINE void callback(void)
{
	sink += burn(3 * MILLISECOND);
}

static unsigned char *put(unsigned char *p, const void *bytes, size_t n)
{
	memcpy(p, bytes, n);
	return p + n;
}

/* push rbp; mov rbp, rsp; [spin]; movabs rax, target; call rax; pop rbp; ret */
static unsigned char *emit(unsigned char *p, uint32_t spins, uint64_t target)
{
	p = put(p, "\x55\x48\x89\xe5", 4);
	if (spins) {
		p = put(p, "\xb9", 1); /* mov ecx, spins */
		p = put(p, &spins, 4);
		p = put(p, "\xff\xc9\x75\xfc", 4); /* dec ecx; jnz -4 */
	}
	p = put(p, "\x48\xb8", 2);
	p = put(p, &target, 8);
	return put(p, "\xff\xd0\x5d\xc3", 4);
}

static NOINLINE void run_jit(void (*code)(void))
{
	code();
	sink++;
}

int main(int argc, char **argv)
{
	unsigned char *code = mmap(NULL, 65536, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return 1;
	unsigned char *inner = code, *outer = code + 4096;
	size_t inner_len = emit(inner, 24 * MILLISECOND / 2, (uint64_t)callback) - inner;
	size_t outer_len = emit(outer, 0, (uint64_t)inner) - outer;

	char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
	int no_map = argc > 2 && !strcmp(argv[2], "nomap");
	FILE *map = fopen(no_map ? "/dev/null" : path, "w");
	if (!map)
		return 1;
	if (argc > 2 && !strcmp(argv[2], "corrupt"))
		fprintf(map, "no map line\n\xff\xfe\n ;;;\nffffffffffffffffff 1 big\n");
	fprintf(map, "%lx %zx jit_inner\n", (unsigned long)inner, inner_len);
	fprintf(map, "%lx %zx jit_outer\n", (unsigned long)outer, outer_len);
	fclose(map);

	if (argc > 2 && !strcmp(argv[2], "forked")) {
		printf("parent %d\n", (int)getpid());
		fflush(stdout);
		if (fork()) {
			wait(NULL);
			return 0;
		}
	}
	wait_until_known();
	work_begin(argc, argv);
	while (work_left())
		run_jit((void (*)(void))(uintptr_t)outer);
	return 0;
}
