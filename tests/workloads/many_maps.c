/*
 * Has thousands of executable mappings of files, and makes new ones all the time.
 *   many_maps SECONDS MAPS FILE
 * Maps FILE that many times, apart from each other, then maps and unmaps one more
 * for the rest of its CPU time.
 */
#include "work.h"

#include <fcntl.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	work_begin(argc, argv);
	int maps = argc > 2 ? atoi(argv[2]) : 1000;
	int fd = open(argc > 3 ? argv[3] : argv[0], O_RDONLY);
	/* Every other page, so that the kernel cannot merge them. */
	char *room = mmap(NULL, (size_t)maps * 8192, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (fd < 0 || room == MAP_FAILED)
		return 1;
	for (int i = 0; i < maps; i++)
		if (mmap(room + (size_t)i * 8192, 4096, PROT_READ | PROT_EXEC,
			 MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
			return 2;
	printf("mapped %d\n", maps);
	fflush(stdout);
	while (work_left()) {
		for (int i = 0; i < 20; i++) {
			void *one = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
			if (one != MAP_FAILED)
				munmap(one, 4096);
		}
		burn(MILLISECOND);
	}
	return 0;
}
