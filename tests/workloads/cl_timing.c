/*
 * OpenCL commands of every kind, for those that time them: `cl_timing PLATFORM MODE [COUNT]`.
 * It prints what it sees of its queues and events, which is the same in each run, and checks
 * what the commands did. Mode `ways`: queues in and out of order, events given and not, user
 * events, wait lists, copies, maps, native kernels. `threads`: contexts and queues at once.
 * `release`: all is released while it runs. `many`: COUNT launches and one clFinish; the time
 * of one launch goes to stderr. `gated`: the same, but none begins before the last was made.
 * `blocked`: COUNT commands that each wait for a user event.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

#include "known.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define ITEMS 4096
#define BYTES (ITEMS * sizeof(float))
#define THREADS 3

static const char *source =
	"kernel void add(global float *x, float by) { x[get_global_id(0)] += by; }\n"
	"kernel void twice(global float *x, float by) { x[get_global_id(0)] *= 2; }\n";

static void check(cl_int status, const char *what)
{
	if (status != CL_SUCCESS) {
		fprintf(stderr, "cl_timing: %s: %d\n", what, status);
		exit(1);
	}
}
#define CHECK(call) check(call, #call)

static cl_device_id device;

struct work {
	cl_context context;
	cl_program program;
	cl_kernel kernels[2];
	cl_mem memory;
	cl_command_queue queue;
};

static void find_device(const char *name)
{
	cl_platform_id all[8];
	cl_uint count = 0;
	CHECK(clGetPlatformIDs(8, all, &count));
	for (cl_uint i = 0; i < count && i < 8; i++) {
		char text[256] = "";
		clGetPlatformInfo(all[i], CL_PLATFORM_NAME, sizeof(text), text, NULL);
		if (strstr(text, name) != NULL) {
			CHECK(clGetDeviceIDs(all[i], CL_DEVICE_TYPE_ALL, 1, &device, NULL));
			/* The functions behind it are probed as well. */
			wait_until_known();
			return;
		}
	}
	fprintf(stderr, "cl_timing: no platform %s\n", name);
	exit(3);
}

static void set_up(struct work *w, const cl_queue_properties *properties)
{
	cl_int status;
	float zero = 0, by = 1;
	w->context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
	check(status, "clCreateContext");
	w->program = clCreateProgramWithSource(w->context, 1, &source, NULL, &status);
	check(status, "clCreateProgramWithSource");
	CHECK(clBuildProgram(w->program, 1, &device, "", NULL, NULL));
	w->memory = clCreateBuffer(w->context, CL_MEM_READ_WRITE, BYTES, NULL, &status);
	check(status, "clCreateBuffer");
	w->kernels[0] = clCreateKernel(w->program, "add", &status);
	check(status, "clCreateKernel");
	w->kernels[1] = clCreateKernel(w->program, "twice", &status);
	check(status, "clCreateKernel");
	for (int k = 0; k < 2; k++) {
		CHECK(clSetKernelArg(w->kernels[k], 0, sizeof(w->memory), &w->memory));
		CHECK(clSetKernelArg(w->kernels[k], 1, sizeof(by), &by));
	}
	w->queue = clCreateCommandQueueWithProperties(w->context, device, properties, &status);
	check(status, "clCreateCommandQueueWithProperties");
	CHECK(clEnqueueFillBuffer(w->queue, w->memory, &zero, sizeof(zero), 0, BYTES, 0, NULL,
				  NULL));
	CHECK(clFinish(w->queue));
}

static void release(struct work *w)
{
	for (int k = 0; k < 2; k++)
		CHECK(clReleaseKernel(w->kernels[k]));
	CHECK(clReleaseMemObject(w->memory));
	CHECK(clReleaseProgram(w->program));
	CHECK(clReleaseCommandQueue(w->queue));
	CHECK(clReleaseContext(w->context));
}

static NOINLINE cl_event launch(struct work *w, int k, cl_uint waits, const cl_event *list,
				int wants)
{
	size_t global = ITEMS, local = 64;
	cl_event event = NULL;
	CHECK(clEnqueueNDRangeKernel(w->queue, w->kernels[k], 1, NULL, &global, &local, waits,
				     list, wants ? &event : NULL));
	return event;
}

typedef cl_int (*info)(void *, cl_uint, size_t, void *, size_t *);

/* References, once the runtime has let go of its own: it does so soon after the end. Those
   of what other commands wait for stay; so the end is when nothing changes for 50 ms. */
static cl_uint references_of(void *object, info ask, cl_uint what)
{
	cl_uint references = 0;
	for (int same = 0; same < 50 && references != 1; same++) {
		cl_uint now = 0;
		CHECK(ask(object, what, sizeof(now), &now, NULL));
		if (now != references)
			same = 0;
		references = now;
		usleep(1000);
	}
	return references;
}

/* What the program sees of a queue. */
static void show_queue(const char *name, cl_command_queue queue)
{
	cl_command_queue_properties flags = 99;
	cl_queue_properties list[16] = {0};
	size_t size = 99, flag_size = 99;
	cl_int flag_status = clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof(flags),
						   &flags, &flag_size);
	cl_int status = clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES_ARRAY, sizeof(list),
					      list, &size);
	cl_int small = clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES_ARRAY, 1, list, NULL);
	cl_uint references = references_of(queue, (info)clGetCommandQueueInfo,
					   CL_QUEUE_REFERENCE_COUNT);
	printf("%s: %d %llu of %zu, list %d of %zu", name, flag_status,
	       (unsigned long long)flags, flag_size, status, size);
	for (size_t i = 0; status == CL_SUCCESS && i < size / sizeof(list[0]) && i < 16; i++)
		printf(" %llx", (unsigned long long)list[i]);
	printf(", in 1 byte %d, references %u\n", size == 0 ? 0 : small, references);
}

/* What the program sees of an event. */
static void show_event(const char *name, cl_event event)
{
	cl_ulong times[4] = {0};
	cl_int status[5];
	size_t size = 99;
	cl_uint references = 0;
	cl_command_type type = 0;
	cl_int state = 0;
	for (int i = 0; i < 4; i++)
		status[i] = clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_QUEUED + i,
						    sizeof(times[i]), &times[i], &size);
	status[4] = clGetEventProfilingInfo(event, 77, sizeof(times[0]), times, NULL);
	int is_order = times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3];
	CHECK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state,
			     NULL));
	if (state == CL_COMPLETE)
		references = references_of(event, (info)clGetEventInfo, CL_EVENT_REFERENCE_COUNT);
	else
		CHECK(clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof(references),
				     &references, NULL));
	CHECK(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL));
	printf("%s: %x, times %d %d %d %d, of 77 %d, %zu bytes, %s, references %u\n", name, type,
	       status[0], status[1], status[2], status[3], status[4], size,
	       times[3] == 0 ? "none" : is_order ? "in order" : "in disorder", references);
}

static void CL_CALLBACK native(void *args)
{
	float **memory = args;
	(*memory)[1] += 3;
}

static void run_ways(const char *name, const cl_queue_properties *properties)
{
	struct work w;
	cl_event events[8];
	cl_int status;
	float *host = malloc(BYTES), by = 4;
	set_up(&w, properties);
	show_queue(name, w.queue);
	/* No command may begin before the user event is set. */
	cl_event user = clCreateUserEvent(w.context, &status);
	check(status, "clCreateUserEvent");
	for (int i = 0; i < ITEMS; i++)
		host[i] = (float)i;
	CHECK(clEnqueueWriteBuffer(w.queue, w.memory, CL_FALSE, 0, BYTES, host, 1, &user,
				   &events[0]));
	events[1] = launch(&w, 0, 1, &events[0], 1);
	events[2] = launch(&w, 1, 1, &events[1], 1);
	show_event("waiting", events[2]);
	CHECK(clRetainEvent(events[2]));
	show_event("retained", events[2]);
	CHECK(clReleaseEvent(events[2]));
	CHECK(clSetUserEventStatus(user, CL_COMPLETE));
	CHECK(clWaitForEvents(1, &events[2]));
	show_event("write", events[0]);
	show_event("kernel", events[2]);
	show_event("user", user);
	/* Without events; a barrier holds the order. */
	CHECK(clEnqueueFillBuffer(w.queue, w.memory, &by, sizeof(by), 0, 16, 0, NULL, NULL));
	CHECK(clEnqueueBarrierWithWaitList(w.queue, 0, NULL, NULL));
	launch(&w, 0, 0, NULL, 0);
	CHECK(clEnqueueBarrierWithWaitList(w.queue, 0, NULL, NULL));
	launch(&w, 1, 0, NULL, 0);
	CHECK(clEnqueueBarrierWithWaitList(w.queue, 0, NULL, NULL));
	CHECK(clEnqueueCopyBuffer(w.queue, w.memory, w.memory, 0, BYTES / 2, 64, 0, NULL, NULL));
	CHECK(clEnqueueMarkerWithWaitList(w.queue, 0, NULL, &events[3]));
	CHECK(clWaitForEvents(1, &events[3]));
	void *args = NULL;
	const void *place = &args;
	CHECK(clEnqueueNativeKernel(w.queue, native, &args, sizeof(args), 1, &w.memory, &place, 0,
				    NULL, &events[4]));
	CHECK(clWaitForEvents(1, &events[4]));
	show_event("native", events[4]);
	float *mapped = clEnqueueMapBuffer(w.queue, w.memory, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE,
					   0, BYTES, 0, NULL, &events[5], &status);
	check(status, "clEnqueueMapBuffer");
	mapped[2] += 100;
	CHECK(clEnqueueUnmapMemObject(w.queue, w.memory, mapped, 0, NULL, &events[6]));
	CHECK(clWaitForEvents(1, &events[6]));
	size_t from[3] = {0, 0, 0}, size[3] = {64, 4, 1};
	CHECK(clEnqueueReadBufferRect(w.queue, w.memory, CL_TRUE, from, from, size, 256, 0, 256, 0,
				      host, 0, NULL, NULL));
	CHECK(clEnqueueReadBuffer(w.queue, w.memory, CL_TRUE, 0, BYTES, host, 0, NULL,
				  &events[7]));
	show_event("read", events[7]);
	double sum = 0;
	for (int i = 0; i < ITEMS; i++)
		sum += host[i];
	/* What fails, fails as ever. */
	cl_event untouched = (cl_event)0x77;
	size_t none = 0;
	status = clEnqueueReadBuffer(w.queue, w.memory, CL_TRUE, BYTES, 8, host, 0, NULL,
				     &untouched);
	printf("sum %.1f, at 2 %.1f, out of bounds %d %p", sum, host[2], status,
	       (void *)untouched);
	status = clEnqueueNDRangeKernel(w.queue, w.kernels[0], 9, NULL, &none, NULL, 0, NULL, NULL);
	printf(", 9 dimensions %d", status);
	printf(", no event %d", clGetEventProfilingInfo(NULL, CL_PROFILING_COMMAND_END, 8, &sum,
							NULL));
	for (int i = 0; i < 8; i++)
		CHECK(clReleaseEvent(events[i]));
	CHECK(clReleaseEvent(user));
	CHECK(clFinish(w.queue));
	/* The program, the kernels, the buffer and the queue hold references, too. */
	cl_uint after = 0;
	cl_uint own = references_of(w.queue, (info)clGetCommandQueueInfo,
				    CL_QUEUE_REFERENCE_COUNT);
	CHECK(clGetContextInfo(w.context, CL_CONTEXT_REFERENCE_COUNT, sizeof(after), &after,
			       NULL));
	printf(", references %u %u\n", own, after);
	free(host);
	release(&w);
}

static void ways(void)
{
	cl_queue_properties profiled[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
	cl_queue_properties disorder[] = {CL_QUEUE_PROPERTIES,
					  CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
	cl_queue_properties both[] = {
		CL_QUEUE_PROPERTIES,
		CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE, 0};
	cl_queue_properties wrong[] = {CL_QUEUE_PROPERTIES, 0, 0x7777, 1, 0};
	run_ways("in order", NULL);
	run_ways("with times", profiled);
	run_ways("out of order", disorder);
	run_ways("both", both);
	struct work w;
	cl_int status;
	set_up(&w, profiled);
	cl_command_queue bad = clCreateCommandQueueWithProperties(w.context, device, wrong, &status);
	printf("wrong properties: %p %d\n", (void *)bad, status);
	cl_command_queue old = clCreateCommandQueue(w.context, device, 0, &status);
	check(status, "clCreateCommandQueue");
	show_queue("old", old);
	CHECK(clReleaseCommandQueue(old));
	release(&w);
}

static void *thread(void *arg)
{
	struct work w;
	long own = (long)arg, count = 100;
	cl_queue_properties disorder[] = {CL_QUEUE_PROPERTIES,
					  CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
	set_up(&w, own == 1 ? disorder : NULL);
	cl_event last = NULL;
	for (long i = 0; i < count; i++) {
		cl_event next = launch(&w, 0, last != NULL, last != NULL ? &last : NULL, 1);
		if (last != NULL)
			CHECK(clReleaseEvent(last));
		last = next;
	}
	CHECK(clWaitForEvents(1, &last));
	CHECK(clReleaseEvent(last));
	float first = 0;
	CHECK(clEnqueueReadBuffer(w.queue, w.memory, CL_TRUE, 0, sizeof(first), &first, 0, NULL,
				  NULL));
	release(&w);
	return (void *)(long)(first == (float)count);
}

static void threads(void)
{
	pthread_t all[THREADS];
	for (long i = 0; i < THREADS; i++)
		pthread_create(&all[i], NULL, thread, (void *)i);
	for (long i = 0; i < THREADS; i++) {
		void *right = NULL;
		pthread_join(all[i], &right);
		printf("thread %ld is %s\n", i, right != NULL ? "right" : "wrong");
	}
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int is_over;

static void CL_CALLBACK over(cl_event event, cl_int status, void *data)
{
	(void)event;
	pthread_mutex_lock(&lock);
	is_over = status == CL_COMPLETE ? 1 : -1;
	*(int *)data += 1;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

static void release_at_once(void)
{
	int calls = 0;
	for (int round = 0; round < 20; round++) {
		struct work w;
		cl_int status;
		set_up(&w, NULL);
		cl_event user = clCreateUserEvent(w.context, &status);
		check(status, "clCreateUserEvent");
		is_over = 0;
		cl_event event = launch(&w, 0, 1, &user, 1);
		for (int i = 0; i < 10; i++)
			launch(&w, i % 2, 0, NULL, 0);
		cl_event last = launch(&w, 1, 0, NULL, 1);
		CHECK(clSetEventCallback(last, CL_COMPLETE, over, &calls));
		CHECK(clReleaseEvent(event));
		CHECK(clReleaseEvent(last));
		CHECK(clFlush(w.queue));
		release(&w);
		CHECK(clSetUserEventStatus(user, CL_COMPLETE));
		CHECK(clReleaseEvent(user));
		pthread_mutex_lock(&lock);
		while (is_over == 0)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
	}
	printf("%d rounds are over: %d\n", calls, is_over);
}

static double now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void many(long count, cl_uint gated)
{
	struct work w;
	size_t global = 1, local = 1;
	cl_int status;
	set_up(&w, NULL);
	cl_event gate = clCreateUserEvent(w.context, &status);
	check(status, "clCreateUserEvent");
	CHECK(clEnqueueNDRangeKernel(w.queue, w.kernels[0], 1, NULL, &global, &local,
				     gated, gated ? &gate : NULL, NULL));
	count--;
	double from = now_us();
	for (long i = 0; i < count; i++)
		CHECK(clEnqueueNDRangeKernel(w.queue, w.kernels[0], 1, NULL, &global, &local, 0,
					     NULL, NULL));
	double to = now_us();
	CHECK(clSetUserEventStatus(gate, CL_COMPLETE));
	CHECK(clFinish(w.queue));
	fprintf(stderr, "launch_us %.4f all_us %.4f\n", (to - from) / count,
		(now_us() - from) / count);
	CHECK(clReleaseEvent(gate));
	float first = 0;
	CHECK(clEnqueueReadBuffer(w.queue, w.memory, CL_TRUE, 0, sizeof(first), &first, 0, NULL,
				  NULL));
	printf("%s\n", first == (float)(count + 1) ? "right" : "wrong");
	release(&w);
}

static void blocked(long count)
{
	struct work w;
	cl_int status;
	set_up(&w, NULL);
	cl_event user = clCreateUserEvent(w.context, &status);
	check(status, "clCreateUserEvent");
	for (long i = 0; i < count; i++)
		launch(&w, 0, 1, &user, 0);
	CHECK(clSetUserEventStatus(user, CL_COMPLETE));
	CHECK(clFinish(w.queue));
	CHECK(clReleaseEvent(user));
	release(&w);
	printf("%ld were blocked\n", count);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: cl_timing PLATFORM MODE [COUNT]\n");
		return 2;
	}
	find_device(argv[1]);
	long count = argc > 3 ? atol(argv[3]) : 1000;
	if (strcmp(argv[2], "ways") == 0)
		ways();
	else if (strcmp(argv[2], "threads") == 0)
		threads();
	else if (strcmp(argv[2], "release") == 0)
		release_at_once();
	else if (strcmp(argv[2], "many") == 0)
		many(count, 0);
	else if (strcmp(argv[2], "gated") == 0)
		many(count, 1);
	else if (strcmp(argv[2], "blocked") == 0)
		blocked(count);
	else
		return 2;
	return 0;
}
