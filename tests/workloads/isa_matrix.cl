// Matrix multiplication units: half precision and 8-bit integers.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#ifdef WIDE
#define A short8
#define SIZE 16
#else
#define A int8
#define SIZE 8
#endif
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(A a, int8 b, float8 acc);
int8 __attribute__((overloadable)) intel_sub_group_i8_i8_matrix_mad_k32(A a, int8 b, int8 acc);

__attribute__((intel_reqd_sub_group_size(SIZE)))
kernel void matrix(global A *a, global int8 *b, global float8 *c, global int8 *d, int n) {
  int i = get_global_id(0);
  float8 sum = c[i];
  int8 whole = d[i];
  for (int k = 0; k < n; k++) {
    sum = intel_sub_group_f16_f16_matrix_mad_k16(a[k], b[k], sum);
    whole = intel_sub_group_i8_i8_matrix_mad_k32(a[k + 1], b[k], whole);
  }
  c[i] = sum;
  d[i] = whole;
}
