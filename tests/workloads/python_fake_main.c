/* Runs python_fake.c for some seconds. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int run(double seconds);

int main(int argc, char **argv)
{
	int whole = run(argc > 1 ? atof(argv[1]) : 1);
	printf("pid %d\n", getpid());
	return !whole;
}
