/* Scribbles over the state of the Python 3.11 that calls it, computes, and puts it right:
 * as a broken or hostile program might, for longer than a profiler looks.
 *
 * Offsets are those of CPython 3.11's Include/cpython/pystate.h (struct _ts, _PyCFrame) and
 * Include/internal/pycore_frame.h (struct _PyInterpreterFrame). */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { CFRAME = 56, CURRENT = 8, CODE = 32, PREVIOUS = 48, INSTRUCTION = 56, OWNER = 68, FRAME = 80 };

static double cpu(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

__attribute__((noinline)) static void burn(double seconds)
{
	double end = cpu() + seconds;
	while (cpu() < end)
		for (volatile int i = 0; i < 20000; i++)
			;
}

/* Each is a function of its own, so that its samples are found by its name. */
#define KIND(name, scribble)                                                                  \
	__attribute__((noinline)) void name(char *state, double seconds)                      \
	{                                                                                     \
		char *cframe = *(char **)(state + CFRAME);                                    \
		char **current = (char **)(cframe + CURRENT);                                 \
		char *frame = *current, saved[FRAME];                                         \
		static char fake[64][FRAME];                                                  \
		memcpy(saved, frame, FRAME);                                                  \
		(void)fake;                                                                   \
		scribble;                                                                     \
		burn(seconds);                                                                \
		memcpy(frame, saved, FRAME);                                                  \
		*current = frame;                                                             \
		*(char **)(state + CFRAME) = cframe;                                          \
		__asm__ volatile("" ::: "memory");                                            \
	}

/* A frame that is its own caller; two that are each other's. */
KIND(own_caller, *(char **)(frame + PREVIOUS) = frame)
KIND(ring_of_two, {
	memcpy(fake[0], saved, FRAME);
	memcpy(fake[1], saved, FRAME);
	*(char **)(fake[0] + PREVIOUS) = fake[1];
	*(char **)(fake[1] + PREVIOUS) = fake[0];
	*current = fake[0];
})
/* Pointers to nothing, to what cannot be read, to the kernel's half, off by a byte. */
KIND(no_frame, *current = 0)
KIND(no_memory, *current = (char *)0x10)
KIND(kernel_half, *(char **)(frame + PREVIOUS) = (char *)0xffffffff81000000ul)
KIND(odd_frame, *current = frame + 1)
KIND(no_cframe, *(char **)(state + CFRAME) = 0)
/* A code object that is none; an instruction far outside of it; owners that do not exist. */
KIND(no_code, *(char **)(frame + CODE) = state)
KIND(far_instruction, *(uint64_t *)(frame + INSTRUCTION) = 0x7fffffffffff)
KIND(strange_owner, memset(frame + OWNER, 0xff, 2))
/* All bits. */
KIND(all_ones, memset(frame, 0xff, FRAME))
/* As many frames as there may be, each on the edge of a page that is not there. */
KIND(edge_of_memory, {
	static char *page;
	if (!page) {
		page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(page + 4096, 4096);
	}
	memcpy(page + 4096 - FRAME / 2, saved, FRAME / 2);
	*current = page + 4096 - FRAME / 2;
})
