/* Several kernels in one module: inlined functions of a header, loops, branches,
 * local memory and barriers, SIMD16 and SIMD32, a function that is called. */
#include "field.h"

__attribute__((intel_reqd_sub_group_size(16)))
kernel void smooth(global const float *in, global float *out, int n)
{
	int i = get_global_id(0);
	if (i >= n)
		return;
	float a = gather(in, i, n);
	for (int k = 0; k < n; k++)
		a = blend(a, in[k]);
	out[i] = a;
}

__attribute__((intel_reqd_sub_group_size(32)))
kernel void scale(global float *out, float factor)
{
	size_t i = get_global_id(0);
	out[i] = weight(out[i]) * factor;
}

__attribute__((reqd_work_group_size(64, 1, 1)))
__attribute__((intel_reqd_sub_group_size(16)))
kernel void total(global const int *in, global int *out)
{
	local int part[64];
	int i = get_local_id(0);
	part[i] = in[get_global_id(0)];
	barrier(CLK_LOCAL_MEM_FENCE);
	for (int half_way = 32; half_way > 0; half_way /= 2) {
		if (i < half_way)
			part[i] += part[i + half_way];
		barrier(CLK_LOCAL_MEM_FENCE);
	}
	if (i == 0)
		atomic_add(out, part[0]);
}

__attribute__((noinline))
float slow(float x, int n)
{
	float sum = x;
	while (n-- > 0)
		sum = native_sin(sum) + weight(x);
	return sum;
}

__attribute__((intel_reqd_sub_group_size(16)))
kernel void waves(global float *out, int n)
{
	int i = get_global_id(0);
	if (n & 1)
		out[i] = slow(out[i], n);
	else
		out[i] = slow(out[i] + 1.0f, n + 2) * 2.0f;
}

/* A name as SYCL gives kernels: the type that stands for it. */
__attribute__((intel_reqd_sub_group_size(32)))
kernel void _ZTSN4demo4CopyE(global const int *in, global int *out)
{
	size_t i = get_global_id(0);
	out[i] = in[i];
}
