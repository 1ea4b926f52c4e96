/*
 * Generates functions at run time, moves them, uses their memory again, and records
 * all that in DIR/jit-PID.dump, in the format of Linux's
 * tools/perf/Documentation/jitdump-specification.txt. Each generated function NAME
 * spins, then calls the C function NAME_truth. A sample in there must name the generated
 * function NAME, whatever was at the same address a moment before.
 *
 *   jitdump SECONDS MODE DIR
 *
 * MODE "now" writes each record before its code runs, "late" all of them at the end;
 * "counter" means that times are the processor's counter.
 */
#include "work.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

static volatile unsigned long sink;

#define TRUTH(name)                         \
	static NOINLINE void name##_truth(void) \
	{                                       \
		sink += burn(2 * MILLISECOND);      \
	}
TRUTH(alpha)
TRUTH(beta)
TRUTH(gamma)
TRUTH(delta)

static FILE *dump;
static uint64_t last_index;
static int is_late;

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void u32(uint32_t number)
{
	fwrite(&number, sizeof number, 1, dump);
}

static void u64(uint64_t number)
{
	fwrite(&number, sizeof number, 1, dump);
}

static void record(uint32_t id, size_t body)
{
	u32(id);
	u32(16 + body);
	u64(now());
}

static void done(void)
{
	if (!is_late)
		fflush(dump);
}

static unsigned char *put(unsigned char *p, const void *bytes, size_t n)
{
	memcpy(p, bytes, n);
	return p + n;
}

/* push rbp; mov rbp, rsp; spin; movabs rax, target; call rax; pop rbp; ret */
static size_t emit(unsigned char *code, void (*target)(void))
{
	uint32_t spins = 8 * MILLISECOND;
	unsigned char *p = put(code, "\x55\x48\x89\xe5\xb9", 5);
	p = put(p, &spins, 4);
	p = put(p, "\xff\xc9\x75\xfc\x48\xb8", 6);
	p = put(p, &target, 8);
	p = put(p, "\xff\xd0\x5d\xc3", 4);
	return p - code;
}

/* Where the call is in it. */
#define CALL 15

/* JIT_CODE_DEBUG_INFO and JIT_CODE_LOAD. The file's name is given once. */
static uint64_t load(unsigned char *code, const char *name, void (*target)(void))
{
	size_t size = emit(code, target);
	char file[64];
	size_t len = snprintf(file, sizeof file, "%s.src", name) + 1;
	record(2, 16 + 2 * 16 + len + 2);
	u64((uint64_t)code);
	u64(2);
	u64((uint64_t)code);
	u32(10);
	u32(0);
	fwrite(file, len, 1, dump);
	u64((uint64_t)code + CALL);
	u32(20);
	u32(0);
	fwrite("\xff", 2, 1, dump);
	/* JIT_CODE_UNWINDING_INFO, which readers may skip */
	record(4, 24 + 8);
	u64(8);
	u64(0);
	u64(0);
	u64(0);
	record(0, 40 + strlen(name) + 1 + size);
	u32(getpid());
	u32(getpid());
	u64((uint64_t)code);
	u64((uint64_t)code);
	u64(size);
	u64(++last_index);
	fwrite(name, strlen(name) + 1, 1, dump);
	fwrite(code, size, 1, dump);
	done();
	return last_index;
}

static void move(unsigned char *from, unsigned char *to, uint64_t index)
{
	size_t size = emit(to, gamma_truth);
	memset(from, 0xcc, size);
	record(1, 48);
	u32(getpid());
	u32(getpid());
	u64((uint64_t)to);
	u64((uint64_t)from);
	u64((uint64_t)to);
	u64(size);
	u64(index);
	done();
}

static NOINLINE void run(unsigned char *code)
{
	((void (*)(void))(uintptr_t)code)();
	sink++;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "now";
	char path[4096];
	snprintf(path, sizeof path, "%s/jit-%d.dump", argc > 3 ? argv[3] : ".", (int)getpid());
	dump = fopen(path, "w+");
	if (!dump)
		return 1;
	is_late = !strcmp(mode, "late");
	setvbuf(dump, NULL, _IOFBF, 16 << 20);
	u32(0x4A695444);
	u32(1);
	u32(40);
	u32(62);
	u32(0);
	u32(getpid());
	u64(now());
	u64(!strcmp(mode, "counter"));
	fflush(dump);
	/* The mark that shows where the file is. */
	if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0) == MAP_FAILED)
		return 1;
	unsigned char *code = mmap(NULL, 65536, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return 1;
	unsigned char *here = code + 4096, *there = code + 8192;
	uint64_t gamma = load(here, "gamma", gamma_truth);

	work_begin(argc, argv);
	while (work_left()) {
		load(code, "alpha", alpha_truth);
		run(code);
		load(code, "beta", beta_truth);
		run(code);
		run(here);
		move(here, there, gamma);
		run(there);
		load(here, "delta", delta_truth);
		run(here);
		unsigned char *before = here;
		here = there;
		there = before;
	}
	record(3, 0);
	fclose(dump);
	return 0;
}
