/*
 * Generates functions at run time as .NET does, and names them in /tmp/perf-PID.map:
 * generated_0 calls generated_1, and so on; the last one spins and calls back. They save
 * registers before they set rbp, and some execute vzeroupper between. Each is called
 * through a jump that is far from it, in the same memory.
 */
#include "work.h"

#include <stdint.h>
#include <sys/mman.h>

enum { FUNCTIONS = 6, ROOM = 128 << 10, JUMP = 16, SIZE = ROOM * (FUNCTIONS + 1) };

static volatile unsigned long sink;

static NOINLINE void callback(void)
{
	sink += burn(MILLISECOND / 4);
}

static unsigned char *put(unsigned char *p, const void *bytes, size_t n)
{
	memcpy(p, bytes, n);
	return p + n;
}

/* call or jmp to `target` */
static unsigned char *branch(unsigned char *p, unsigned char code, const unsigned char *target)
{
	int32_t distance = (int32_t)(target - (p + 5));
	p = put(p, &code, 1);
	return put(p, &distance, 4);
}

static unsigned char *begin(unsigned char *p, int is_large)
{
	/* push rbp; sub rsp, 16; lea rbp, [rsp + 16] */
	if (!is_large)
		return put(p, "\x55\x48\x83\xec\x10\x48\x8d\x6c\x24\x10", 10);
	/* push rbp, r15, r14, rbx, rax */
	p = put(p, "\x55\x41\x57\x41\x56\x53\x50", 7);
	if (__builtin_cpu_supports("avx"))
		p = put(p, "\xc5\xf8\x77", 3);
	/* lea rbp, [rsp + 32]; mov eax, ebx */
	return put(p, "\x48\x8d\x6c\x24\x20\x8b\xc3", 7);
}

static void end(unsigned char *p, int is_large)
{
	if (is_large) /* add rsp, 8; pop rbx, r14, r15, rbp; ret */
		put(p, "\x48\x83\xc4\x08\x5b\x41\x5e\x41\x5f\x5d\xc3", 11);
	else /* add rsp, 16; pop rbp; ret */
		put(p, "\x48\x83\xc4\x10\x5d\xc3", 6);
}

static void make(unsigned char *code, int i)
{
	unsigned char *p = code + (i + 1) * ROOM;
	branch(code + i * JUMP, 0xe9, p);
	p = begin(p, i % 2);
	if (i < FUNCTIONS - 1) {
		p = branch(p, 0xe8, code + (i + 1) * JUMP);
	} else {
		uint32_t spins = MILLISECOND;
		uint64_t target = (uint64_t)callback;
		p = put(p, "\xb9", 1); /* mov ecx, spins */
		p = put(p, &spins, 4);
		p = put(p, "\xff\xc9\x75\xfc", 4); /* dec ecx; jnz -4 */
		p = put(p, "\x48\xb8", 2); /* movabs rax, target */
		p = put(p, &target, 8);
		p = put(p, "\xff\xd0", 2); /* call rax */
	}
	end(p, i % 2);
}

static NOINLINE void run(void (*code)(void))
{
	code();
	sink++;
}

int main(int argc, char **argv)
{
	unsigned char *code = mmap(NULL, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return 1;
	char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
	FILE *map = fopen(path, "w");
	if (!map)
		return 1;
	for (int i = 0; i < FUNCTIONS; i++) {
		make(code, i);
		fprintf(map, "%lx %x generated_%d\n", (unsigned long)(code + (i + 1) * ROOM), 256,
			i);
	}
	fclose(map);
	work_begin(argc, argv);
	while (work_left())
		run((void (*)(void))(uintptr_t)code);
	return 0;
}
