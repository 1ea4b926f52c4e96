/*
 * A layer of an OpenCL loader: it counts launches of kernels and prints at the end how many
 * there were. With CL_LAYER_SHIFT=NANOSECONDS the times of events are later by that much more
 * each time that the program reads one: no clock has such times.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl_layer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cl_icd_dispatch *target;
static cl_icd_dispatch own;
static unsigned long launches;
static cl_ulong step, shift;

static cl_int CL_API_CALL launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
				 const size_t *offset, const size_t *global, const size_t *local,
				 cl_uint waits, const cl_event *list, cl_event *event)
{
	__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
	return target->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local,
					      waits, list, event);
}

static cl_int CL_API_CALL times(cl_event event, cl_profiling_info what, size_t size,
				void *value, size_t *size_ret)
{
	cl_int status = target->clGetEventProfilingInfo(event, what, size, value, size_ret);
	if (status == CL_SUCCESS && value != NULL)
		*(cl_ulong *)value += __atomic_add_fetch(&shift, step, __ATOMIC_RELAXED);
	return status;
}

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t size, void *value,
					       size_t *size_ret)
{
	cl_layer_api_version version = CL_LAYER_API_VERSION_100;
	if (what != CL_LAYER_API_VERSION || size < sizeof(version))
		return CL_INVALID_VALUE;
	memcpy(value, &version, sizeof(version));
	if (size_ret != NULL)
		*size_ret = sizeof(version);
	return CL_SUCCESS;
}

static void say(void)
{
	printf("the layer saw %lu launches\n", launches);
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint entries, const cl_icd_dispatch *behind,
					    cl_uint *entries_ret, const cl_icd_dispatch **ret)
{
	const char *given = getenv("CL_LAYER_SHIFT");
	step = given != NULL ? strtoull(given, NULL, 10) : 0;
	target = behind;
	own.clEnqueueNDRangeKernel = launch;
	own.clGetEventProfilingInfo = times;
	*entries_ret = sizeof(own) / sizeof(void *);
	*ret = &own;
	(void)entries;
	atexit(say);
	return CL_SUCCESS;
}
