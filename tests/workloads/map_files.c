/*
 * Works a little, again and again, with files mapped that it never reads:
 * `map_files SECONDS FILE...`.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "work.h"

int main(int argc, char **argv)
{
	work_begin(argc, argv);
	for (int i = 2; i < argc; i++) {
		int file = open(argv[i], O_RDONLY);
		if (file < 0 || mmap(NULL, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
			return 1;
		close(file);
	}
	while (work_left()) {
		burn(2 * MILLISECOND);
		usleep(50000);
	}
	return 0;
}
