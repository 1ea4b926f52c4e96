/*
 * Copies its own text to anonymous memory at the same addresses, as programs do that want huge
 * pages, and then works: outer calls inner. The second argument:
 *   whole  all of the text;
 *   part   the pages of the working functions only;
 *   other  other code, which it generates, where the text of `unused` was: no copy. It is named
 *          by nothing.
 * With -DMOVER it is the library that does the copying, which cannot be part of what is copied.
 */
#include "known.h"
#include "work.h"

#include <stdint.h>
#include <sys/mman.h>

void move_text(void *start, size_t size, const void *bytes);

#ifdef MOVER
void move_text(void *start, size_t size, const void *bytes)
{
	void *saved = malloc(size);
	memcpy(saved, bytes, size);
	/* As node and PHP do it. */
	void *at = mmap(start, size, PROT_READ | PROT_WRITE | PROT_EXEC,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (at != start)
		abort();
	memcpy(start, saved, size);
	if (mprotect(start, size, PROT_READ | PROT_EXEC))
		abort();
	free(saved);
}
#else
#define PAGE 4096UL

/* Fills pages of their own, so that others of the file are around. */
#define PAGES __attribute__((section(".text.work"), aligned(4096)))

static volatile unsigned long sink;

PAGES NOINLINE unsigned long inner(unsigned long n) { return burn(n) + 1; }
PAGES NOINLINE unsigned long outer(unsigned long n) { return inner(n) + 2; }

__asm__(".section .text.work,\"ax\"\n.balign 4096\n.globl unused\n.type unused, @function\n"
	"unused: .fill 8192, 1, 0x90\nret\n.size unused, . - unused\n.balign 4096\n.text\n");
extern char unused[];

/* The mapping that an address is in. */
static void mapping_of(void *address, uintptr_t *start, uintptr_t *end)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx", start, end) == 2 &&
		    *start <= (uintptr_t)address && (uintptr_t)address < *end)
			break;
	fclose(maps);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "whole";
	unsigned long (*work)(unsigned long) = outer;
	uintptr_t start, end;
	if (!strcmp(mode, "whole")) {
		mapping_of(main, &start, &end);
		move_text((void *)start, end - start, (void *)start);
	} else if (!strcmp(mode, "part")) {
		start = (uintptr_t)inner & -PAGE;
		end = ((uintptr_t)outer & -PAGE) + PAGE;
		move_text((void *)start, end - start, (void *)start);
	} else {
		/* push rbp; mov rbp, rsp; mov rcx, rdi; dec rcx; jnz -5; pop rbp; ret */
		static unsigned char code[PAGE] = "\x55\x48\x89\xe5\x48\x89\xf9"
						  "\x48\xff\xc9\x75\xfb\x5d\xc3";
		move_text(unused, PAGE, code);
		work = (unsigned long (*)(unsigned long))(uintptr_t)unused;
	}
	wait_until_known();
	work_begin(argc, argv);
	while (work_left())
		sink += work(4 * MILLISECOND);
	return 0;
}
#endif
