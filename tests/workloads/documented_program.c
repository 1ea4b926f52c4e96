/* What the documentation calls ./program: parses numbers, and gives the virtual CUDA driver work,
 * for half a second. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int cuInit(unsigned);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuMemcpyHtoDAsync_v2(unsigned long, const void *, size_t, void *);
int cuCtxSynchronize(void);

__attribute__((noinline)) static double parse(void)
{
	double sum = 0;
	for (int i = 0; i < 20000; i++) {
		char text[] = "3.14159e2";
		text[3] = '0' + i % 10;
		sum += strtod(text, NULL);
	}
	return sum;
}

__attribute__((noinline)) static void launch(void *kernel, double sum)
{
	cuMemcpyHtoDAsync_v2(4096, &sum, sizeof sum, NULL);
	cuLaunchKernel(kernel, 4, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL);
	cuCtxSynchronize();
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

int main(void)
{
	void *kernel = NULL;
	double end = seconds() + 0.5;
	if (cuInit(0) || cuModuleGetFunction(&kernel, NULL, "smooth_100"))
		return 1;
	while (seconds() < end)
		launch(kernel, parse());
	return 0;
}
