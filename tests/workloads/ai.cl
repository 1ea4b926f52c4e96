/* Kernels of ze_ai.py: what one step of training a small network runs. */

#define TILE 16

/* One tile of a row of `a` with one of a column of `b`. */
inline float dot_tile(local const float *a, local const float *b, int row, int column)
{
	float sum = 0;
	for (int k = 0; k < TILE; k++)
		sum = mad(a[row * TILE + k], b[k * TILE + column], sum);
	return sum;
}

kernel void matmul(global const float *a, global const float *b, global float *c, int n)
{
	local float tile_a[TILE * TILE], tile_b[TILE * TILE];
	int row = get_local_id(1), column = get_local_id(0);
	int i = get_global_id(1), j = get_global_id(0);
	float sum = 0;
	for (int t = 0; t < n; t += TILE) {
		tile_a[row * TILE + column] = a[i * n + t + column];
		tile_b[row * TILE + column] = b[(t + row) * n + j];
		barrier(CLK_LOCAL_MEM_FENCE);
		sum += dot_tile(tile_a, tile_b, row, column);
		barrier(CLK_LOCAL_MEM_FENCE);
	}
	c[i * n + j] = sum;
}

kernel void softmax(global const float *x, global float *y, int n)
{
	int row = get_global_id(0);
	float most = -INFINITY, sum = 0;
	for (int k = 0; k < n; k++)
		most = fmax(most, x[row * n + k]);
	for (int k = 0; k < n; k++)
		sum += exp(x[row * n + k] - most);
	for (int k = 0; k < n; k++)
		y[row * n + k] = exp(x[row * n + k] - most) / sum;
}

kernel void adam(global float *weights, global float *mean, global float *variance,
		 global const float *gradient, float rate)
{
	int i = get_global_id(0);
	float g = gradient[i];
	float m = mean[i] = 0.9f * mean[i] + 0.1f * g;
	float v = variance[i] = 0.999f * variance[i] + 0.001f * g * g;
	weights[i] -= rate * m / (sqrt(v) + 1e-8f);
}
