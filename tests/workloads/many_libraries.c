/*
 * Loads copies of a library: `many_libraries DIRECTORY NAME N` opens
 * DIRECTORY/0/NAME to DIRECTORY/N-1/NAME, the first half at once, the others after a
 * line on stdin, with a line of output behind each half. Then it waits for the end of
 * stdin.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int n = atoi(argv[3]);
	for (int i = 0; i < n; i++) {
		char path[4096];
		if (i == n / 2) {
			puts("half");
			fflush(stdout);
			getchar();
		}
		snprintf(path, sizeof path, "%s/%d/%s", argv[1], i, argv[2]);
		if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
	}
	puts("all");
	fflush(stdout);
	while (getchar() != EOF)
		continue;
	return 0;
}
