/* Kernels of the tests, one of them with a long name. */

kernel void saxpy(global float *x, global float *y, int n)
{
	int i = get_global_id(0);
	if (i < n)
		y[i] = 2.5f * x[i] + y[i];
}

kernel void a_rather_long_kernel_name_that_lives_on_the_heap(global float *x, global float *y, int n)
{
	int i = get_global_id(0);
	float sum = 0;
	for (int k = 0; k < n; k++)
		sum += x[k];
	y[i % n] = sum;
}

kernel void k3(global float *x, global float *y, int n)
{
	int i = get_global_id(0);
	if (i < n)
		y[i] = sqrt(x[i]);
}
