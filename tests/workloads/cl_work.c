/*
 * An OpenCL program: `cl_work PLATFORM KERNELS.cl LAUNCHES [no-check [single]]`. It takes
 * the first platform whose name contains PLATFORM, builds the file, launches its kernels
 * in turn between copies and fills, and prints its account as one line of JSON. With
 * `single` each kernel is made by itself, and nothing asks for its name. Between its first
 * look at the devices and the rest it waits until it is known, and for CL_WORK_PAUSE_MS, which
 * is for recordings that have no states (`aiprof trace`). If
 * CL_WORK_TIMES names a file, it waits for events now and then, and writes there a line
 * for each launch: the kernel, and when it began and ended on CLOCK_MONOTONIC. The
 * platform's clock has to be CLOCK_MONOTONIC_RAW, as PoCL's is.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "known.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define MAX_KERNELS 16
#define ITEMS 1024
#define MAX_TIMED 4096

static void check(cl_int status, const char *what)
{
	if (status != CL_SUCCESS) {
		fprintf(stderr, "cl_work: %s: %d\n", what, status);
		exit(1);
	}
}

static cl_platform_id find_platform(const char *name)
{
	cl_platform_id all[8];
	cl_uint count = 0;
	check(clGetPlatformIDs(8, all, &count), "clGetPlatformIDs");
	for (cl_uint i = 0; i < count && i < 8; i++) {
		char text[256] = "";
		clGetPlatformInfo(all[i], CL_PLATFORM_NAME, sizeof(text), text, NULL);
		if (strstr(text, name) != NULL)
			return all[i];
	}
	fprintf(stderr, "cl_work: no platform %s\n", name);
	exit(3);
}

static char *read_text(const char *path)
{
	static char text[1 << 16];
	FILE *file = fopen(path, "r");
	if (file == NULL || fread(text, 1, sizeof(text) - 1, file) == 0) {
		perror(path);
		exit(1);
	}
	fclose(file);
	return text;
}

struct program {
	cl_command_queue queue;
	cl_kernel kernels[MAX_KERNELS];
	char names[MAX_KERNELS][128];
	cl_uint count;
	cl_mem x, y;
	/* Events of launches, if their times are wanted, and how many were waited for. */
	int timed;
	cl_event events[MAX_TIMED];
	cl_uint kernel_of[MAX_TIMED];
	cl_uint launched, waited;
};

static void build(struct program *p, cl_platform_id platform, const char *path, int single)
{
	cl_device_id device;
	cl_int status;
	check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
	wait_until_known();
	const char *pause_ms = getenv("CL_WORK_PAUSE_MS");
	if (pause_ms != NULL)
		usleep(1000 * (useconds_t)atoi(pause_ms));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
	check(status, "clCreateContext");
	p->queue = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &status);
	check(status, "clCreateCommandQueue");
	const char *text = read_text(path);
	cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &status);
	check(status, "clCreateProgramWithSource");
	check(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");
	if (single) {
		const char *names[] = {"saxpy", "k3"};
		for (; p->count < 2; p->count++) {
			strcpy(p->names[p->count], names[p->count]);
			p->kernels[p->count] = clCreateKernel(program, names[p->count], &status);
			check(status, "clCreateKernel");
		}
	} else {
		check(clCreateKernelsInProgram(program, MAX_KERNELS, p->kernels, &p->count),
		      "clCreateKernelsInProgram");
	}
	p->x = clCreateBuffer(context, CL_MEM_READ_WRITE, ITEMS * sizeof(float), NULL, &status);
	check(status, "clCreateBuffer");
	p->y = clCreateBuffer(context, CL_MEM_READ_WRITE, ITEMS * sizeof(float), NULL, &status);
	check(status, "clCreateBuffer");
	cl_int n = ITEMS;
	for (cl_uint k = 0; k < p->count; k++) {
		if (!single)
			check(clGetKernelInfo(p->kernels[k], CL_KERNEL_FUNCTION_NAME,
					      sizeof(p->names[k]), p->names[k], NULL),
			      "clGetKernelInfo");
		check(clSetKernelArg(p->kernels[k], 0, sizeof(p->x), &p->x), "clSetKernelArg");
		check(clSetKernelArg(p->kernels[k], 1, sizeof(p->y), &p->y), "clSetKernelArg");
		check(clSetKernelArg(p->kernels[k], 2, sizeof(n), &n), "clSetKernelArg");
	}
}

static NOINLINE void launch(struct program *p, cl_uint k, unsigned long *counts)
{
	size_t global = ITEMS, local = 32;
	cl_event *event = p->timed && p->launched < MAX_TIMED ? &p->events[p->launched] : NULL;
	check(clEnqueueNDRangeKernel(p->queue, p->kernels[k], 1, NULL, &global, &local, 0, NULL,
				     event),
	      "clEnqueueNDRangeKernel");
	counts[k]++;
	if (event == NULL)
		return;
	p->kernel_of[p->launched++] = k;
	/* Some are waited for by their events, the last by clFinish. */
	if (p->launched % 8 == 5) {
		check(clWaitForEvents(3, &p->events[p->launched - 3]), "clWaitForEvents");
		p->waited += 3;
	}
}

static unsigned long long now(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static cl_ulong time_of(cl_event event, cl_profiling_info what)
{
	cl_ulong time = 0;
	check(clGetEventProfilingInfo(event, what, sizeof(time), &time, NULL),
	      "clGetEventProfilingInfo");
	return time;
}

static void write_times(struct program *p, const char *path, unsigned long long begin)
{
	FILE *file = fopen(path, "w");
	if (file == NULL) {
		perror(path);
		exit(1);
	}
	unsigned long long end = now(CLOCK_MONOTONIC_RAW);
	unsigned long long apart = now(CLOCK_MONOTONIC) - end;
	for (cl_uint i = 0; i < p->launched; i++) {
		cl_ulong from = time_of(p->events[i], CL_PROFILING_COMMAND_START);
		cl_ulong to = time_of(p->events[i], CL_PROFILING_COMMAND_END);
		if (from < begin || to > end) {
			fprintf(stderr, "cl_work: not CLOCK_MONOTONIC_RAW\n");
			exit(1);
		}
		fprintf(file, "%s %llu %llu\n", p->names[p->kernel_of[i]],
			(unsigned long long)from + apart, (unsigned long long)to + apart);
	}
	fclose(file);
}

/* y = 2.5 x + y once, with known x and y. */
static int saxpy_is_right(struct program *p, cl_uint k, unsigned long *counts)
{
	float x[ITEMS], y[ITEMS];
	for (int i = 0; i < ITEMS; i++) {
		x[i] = (float)i;
		y[i] = 1;
	}
	check(clEnqueueWriteBuffer(p->queue, p->x, CL_FALSE, 0, sizeof(x), x, 0, NULL, NULL),
	      "clEnqueueWriteBuffer");
	check(clEnqueueWriteBuffer(p->queue, p->y, CL_FALSE, 0, sizeof(y), y, 0, NULL, NULL),
	      "clEnqueueWriteBuffer");
	launch(p, k, counts);
	check(clEnqueueReadBuffer(p->queue, p->y, CL_TRUE, 0, sizeof(y), y, 0, NULL, NULL),
	      "clEnqueueReadBuffer");
	for (int i = 0; i < ITEMS; i++)
		if (y[i] != 2.5f * (float)i + 1)
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: cl_work PLATFORM KERNELS.cl LAUNCHES [no-check [single]]\n");
		return 2;
	}
	static struct program p;
	const char *times = getenv("CL_WORK_TIMES");
	unsigned long long begin = now(CLOCK_MONOTONIC_RAW);
	p.timed = times != NULL;
	unsigned long counts[MAX_KERNELS] = {0};
	build(&p, find_platform(argv[1]), argv[2], argc > 5);
	int right = 1;
	for (cl_uint k = 0; k < p.count; k++)
		if (strcmp(p.names[k], "saxpy") == 0)
			right = saxpy_is_right(&p, k, counts);
	if (argc > 4)
		right = 1;
	float zero = 0;
	check(clEnqueueFillBuffer(p.queue, p.y, &zero, sizeof(zero), 0, ITEMS * sizeof(float), 0,
				  NULL, NULL),
	      "clEnqueueFillBuffer");
	check(clEnqueueCopyBuffer(p.queue, p.x, p.y, 0, 0, ITEMS * sizeof(float), 0, NULL, NULL),
	      "clEnqueueCopyBuffer");
	for (long i = 0; i < atol(argv[3]); i++)
		launch(&p, (cl_uint)i % p.count, counts);
	check(clFinish(p.queue), "clFinish");
	if (times != NULL)
		write_times(&p, times, begin);
	printf("{\"mode\":\"opencl\",\"pid\":%d,\"launches\":{", (int)getpid());
	for (cl_uint k = 0; k < p.count; k++)
		printf("%s\"%s\":%lu", k ? "," : "", p.names[k], counts[k]);
	printf("},\"right\":%s}\n", right ? "true" : "false");
	return !right;
}
