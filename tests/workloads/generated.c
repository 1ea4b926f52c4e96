/*
 * Generates functions at run time that have no frame pointers, and names them in
 * /tmp/perf-PID.map: generated_0 calls generated_1, and so on; the last one spins and
 * calls back. What they save and how much room they make is random, and they use rbp
 * for something else. By the second argument:
 *   stays     they are made once.
 *   grows     others are made behind them, one chain every 1.5 seconds, in memory that is
 *             there already.
 *   replaced  they are made anew in the same place, 20 times a second.
 */
#include "work.h"

#include <stdint.h>
#include <sys/mman.h>

enum { FUNCTIONS = 6, CHAINS = 16, ROOM = 256, PART = ROOM * FUNCTIONS, SIZE = PART * CHAINS };

static volatile unsigned long sink;
static unsigned seed = 1;

static NOINLINE void callback(void)
{
	sink += burn(MILLISECOND / 4);
}

static unsigned below(unsigned n)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 16) % n;
}

static unsigned char *put(unsigned char *p, const void *bytes, size_t n)
{
	memcpy(p, bytes, n);
	return p + n;
}

/* push what is saved; sub; use rbp; [spin]; call; add; pop; ret */
static void emit(unsigned char *p, uint32_t spins, uint64_t target)
{
	static const char *const push[] = { "\x55", "\x53", "\x41\x54", "\x41\x55", "\x41\x56" };
	static const char *const pop[] = { "\x5d", "\x5b", "\x41\x5c", "\x41\x5d", "\x41\x5e" };
	unsigned saved = 1 + below(5);
	uint32_t room = 8 * (2 * below(40) + saved % 2);
	if (room == 0)
		room = 16;
	for (unsigned i = 0; i < saved; i++)
		p = put(p, push[i], strlen(push[i]));
	p = put(p, "\x48\x81\xec", 3);
	p = put(p, &room, 4);
	p = put(p, "\xbd", 1); /* mov ebp, spins */
	p = put(p, &spins, 4);
	if (spins)
		p = put(p, "\xff\xcd\x75\xfc", 4); /* dec ebp; jnz -4 */
	p = put(p, "\x48\xb8", 2); /* movabs rax, target */
	p = put(p, &target, 8);
	p = put(p, "\xff\xd0", 2); /* call rax */
	p = put(p, "\x48\x81\xc4", 3);
	p = put(p, &room, 4);
	for (unsigned i = saved; i-- > 0;)
		p = put(p, pop[i], strlen(pop[i]));
	put(p, "\xc3", 1);
}

static void make(unsigned char *chain)
{
	for (int i = 0; i < FUNCTIONS; i++) {
		int is_last = i == FUNCTIONS - 1;
		uint64_t next = is_last ? (uint64_t)callback : (uint64_t)(chain + (i + 1) * ROOM);
		memset(chain + i * ROOM, 0, ROOM);
		emit(chain + i * ROOM, is_last ? MILLISECOND : 0, next);
	}
}

static NOINLINE void run(void (*code)(void))
{
	code();
	sink++;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "stays";
	unsigned char *code = mmap(NULL, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return 1;
	char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
	FILE *map = fopen(path, "w");
	if (!map)
		return 1;
	for (int chain = 0; chain < CHAINS; chain++)
		for (int i = 0; i < FUNCTIONS; i++)
			fprintf(map, "%lx %x generated_%d\n",
				(unsigned long)(code + chain * PART + i * ROOM), ROOM, i);
	fclose(map);

	work_begin(argc, argv);
	double begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
	int made = 0;
	unsigned char *chain = code;
	while (work_left()) {
		double now = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - begin;
		int is_due = !strcmp(mode, "grows")    ? made < CHAINS && now >= 1.5 * made :
			     !strcmp(mode, "replaced") ? now * 20 >= made :
							 made == 0;
		if (is_due) {
			chain = !strcmp(mode, "grows") ? code + made * PART : code;
			make(chain);
			made++;
		}
		run((void (*)(void))(uintptr_t)chain);
	}
	return 0;
}
