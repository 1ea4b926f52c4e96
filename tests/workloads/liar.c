/*
 * Gives OpenCL's loader a driver whose functions are in libc: `liar`. It prints "ready",
 * waits for a line, and shows its table until its input ends.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define ENTRIES 128
#define OF_DEVICES 2

static void *table[ENTRIES];

struct object {
	void **dispatch;
};

static cl_int no_devices(cl_platform_id platform, cl_device_type type, cl_uint room,
			 cl_device_id *devices, cl_uint *count)
{
	(void)platform, (void)type, (void)room, (void)devices;
	*count = 0;
	return CL_DEVICE_NOT_FOUND;
}

int main(void)
{
	/* Functions of libc with different addresses, each for some entries. */
	const char *names[] = {"qsort", "strtol", "fwrite", "fread", "puts", "getenv",
			       "setvbuf", "fopen", "fclose", "fflush", "atoi", "perror",
			       "strtoul", "ungetc", "rewind", "fseek", "ftell", "bsearch"};
	const size_t count = sizeof(names) / sizeof(names[0]);
	for (size_t i = 0; i < ENTRIES; i++)
		table[i] = dlsym(RTLD_DEFAULT, names[i % count]);
	table[OF_DEVICES] = (void *)no_devices;
	struct object platform = {table};
	puts("ready");
	fflush(stdout);
	getchar();
	struct pollfd input = {.fd = 0, .events = POLLIN};
	while (poll(&input, 1, 20) == 0) {
		cl_uint found = 0;
		clGetDeviceIDs((cl_platform_id)&platform, CL_DEVICE_TYPE_ALL, 0, NULL, &found);
	}
	return 0;
}
