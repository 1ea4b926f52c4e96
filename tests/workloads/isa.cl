// Kernels that make the compiler use every kind of instruction it has.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#ifdef DOUBLE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

// Integer arithmetic of every width, with carries, shifts and bit counts.
kernel void integers(global int *a, global long *b, global short *c, global uchar *d, int n) {
  size_t i = get_global_id(0);
  int x = a[i];
  a[i] = mad_hi(x, n, a[i + 1]) ^ rotate(x, 7) ^ clz(x) ^ popcount(n + x);
  b[i] = b[i] * b[i + 1] + x / (n | 1) + b[i] % (n | 3);
  c[i] = add_sat(c[i], (short)n) + hadd(c[i + 1], c[i]);
  d[i] = abs_diff(d[i], (uchar)n) + mul24(x, n) + (d[i + 1] & ~(uchar)x | (uchar)n);
  b[i + 2] = as_long(rotate(as_ulong(b[i + 3]), (ulong)n)) + mul_hi(b[i], b[i + 5]);
}

// Single precision with every extended function, branches among channels.
kernel void floats(global float *a, global half *h, float s) {
  size_t i = get_global_id(0);
  float x = a[i];
  if (x > 0.5f)
    x = native_sin(x) + native_log2(x) * native_exp2(s);
  else
    x = native_rsqrt(x) + native_recip(s) + sqrt(x) + x / s;
  h[i] = convert_half(x) * h[i + 1] + (half)s;
  a[i] = fma(x, s, rint(x)) + floor(x) + fract(x, a + i + 9) + pow(x, s) + ceil(s * x) + trunc(x);
  a[i + 1] = isnan(x) ? fmin(x, s) : native_cos(x) + convert_float(convert_int_sat(x));
}

#ifdef DOUBLE
kernel void doubles(global double *a, double s, int n) {
  size_t i = get_global_id(0);
  double x = a[i];
  for (int j = 0; j < n; j++)
    x = fma(x, s, a[i + j]) / (x + 1.0) + sqrt(x);
  a[i] = x + convert_double(n) + (double)convert_long(x);
}
#endif

// Local memory, barriers, nested loops that diverge, breaks and continues.
kernel void loops(global float *in, global float *out, int n, local float *tile) {
  int l = get_local_id(0), g = get_global_id(0);
  float sum = 0.0f;
  for (int t = 0; t < n; t += get_local_size(0)) {
    tile[l] = in[g + t];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < get_local_size(0); k++) {
      if (tile[k] < 0.0f)
        continue;
      if (tile[k] > 1000.0f)
        break;
      int m = (int)tile[k];
      while (m > 3) {
        sum += tile[m & 63] * k;
        m = (m & 1) ? m * 3 + 1 - n : m >> 1;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (sum < -1.0f)
      return;
  }
  out[g] = sum;
}

// Atomics of both memories, fences, 64 bits.
kernel void atomics(global int *a, global float *f, local int *l, global ulong *q) {
  int i = get_local_id(0);
  l[i] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  atomic_add(l + (a[i] & 15), 1);
  mem_fence(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
  atomic_max(a + i, l[i]);
  atomic_cmpxchg(a, i, 4);
  barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
  q[i] = l[15 - i];
  f[i] = atomic_xchg(f + 3, 1.0f);
}

// A switch, a table in private memory, sub-groups' shuffles and block reads.
__attribute__((intel_reqd_sub_group_size(16)))
kernel void subgroups(global uint *a, global uint *b, int n) {
  uint x = intel_sub_group_block_read(a);
  x += sub_group_reduce_add(x) + sub_group_scan_inclusive_max(x);
  x ^= intel_sub_group_shuffle(x, n) + sub_group_broadcast(x, 3);
  uint table[32];
  for (int i = 0; i < 32; i++)
    table[i] = x * i;
  switch (x % 6) {
  case 0: x += table[n & 31]; break;
  case 1: x *= 11; break;
  case 2: x -= b[x & 7]; break;
  case 3: x /= 7; break;
  default: x ^= table[x & 31];
  }
  intel_sub_group_block_write(b, x);
}

// Small width, big registers.
__attribute__((intel_reqd_sub_group_size(NARROW)))
kernel void narrow(global uint *a, global float4 *v) {
  size_t i = get_global_id(0);
  v[i] = v[i + 1] * v[i].wzyx + convert_float4(vload4(i, a));
}

__attribute__((noinline)) float callee(global float *p, float x, int n) {
  if (n == 0)
    return p[(int)x];
  return x * native_exp(p[n]) + p[n + 1];
}
kernel void calls(global float *p, int n) {
  float x = p[get_global_id(0)];
  for (int i = 0; i < n; i++)
    x = callee(p, x, i) + callee(p + 1, x * 2, n - i);
  p[get_global_id(0)] = x;
}

#ifndef NO_IMAGES
kernel void images(read_only image2d_t in, write_only image2d_t out, sampler_t s) {
  int2 at = (int2)(get_global_id(0), get_global_id(1));
  write_imagef(out, at, read_imagef(in, s, convert_float2(at) * 0.5f) + read_imagef(in, at));
}
#endif
