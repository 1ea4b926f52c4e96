/* Linear algebra by OpenBLAS: kernels in assembly without unwind data. */
#include "work.h"

extern void cblas_dgemm(int, int, int, int, int, int, double, const double *, int,
			const double *, int, double, double *, int);
extern void cblas_sgemm(int, int, int, int, int, int, float, const float *, int,
			const float *, int, float, float *, int);
extern void cblas_dgemv(int, int, int, int, double, const double *, int,
			const double *, int, double, double *, int);
extern double cblas_ddot(int, const double *, int, const double *, int);
extern void cblas_daxpy(int, double, const double *, int, double *, int);
extern void cblas_dcopy(int, const double *, int, double *, int);
extern void cblas_dswap(int, double *, int, double *, int);
extern void cblas_dscal(int, double, double *, int);
extern void cblas_dtrsm(int, int, int, int, int, int, int, double, const double *, int,
			double *, int);
extern void cblas_zgemm(int, int, int, int, int, int, const void *, const void *, int,
			const void *, int, const void *, void *, int);
extern void dgesv_(int *, int *, double *, int *, int *, double *, int *, int *);

#define N 24

int main(int argc, char **argv)
{
	static double a[N * N * 2], b[N * N * 2], c[N * N * 2];
	static float f[N * N], g[N * N], h[N * N];
	static int pivots[N];
	double one[2] = { 1, 0 }, sum = 0;
	int n = N, info;

	work_begin(argc, argv);
	while (work_left()) {
		for (int i = 0; i < N * N * 2; i++) {
			a[i] = (i * 7919 % 1009) / 500.0;
			b[i] = (i * 104729 % 1013) / 500.0;
		}
		for (int i = 0; i < N * N; i++)
			f[i] = g[i] = (float)a[i];
		cblas_dgemm(101, 111, 112, N, N, N, 1, a, N, b, N, 0, c, N);
		cblas_sgemm(102, 111, 111, N, N, N, 1, f, N, g, N, 0, h, N);
		cblas_zgemm(102, 111, 111, N, N, N, one, a, N, b, N, one, c, N);
		cblas_dgemv(102, 112, N, N, 1, a, N, b, 1, 1, c, 1);
		sum += cblas_ddot(N * N, a, 1, b, 1);
		cblas_daxpy(N * N, 2, a, 1, b, 1);
		cblas_dcopy(N * N, a, 1, c, 1);
		cblas_dswap(N * N, b, 1, c, 1);
		cblas_dscal(N * N, 0.5, c, 1);
		for (int i = 0; i < N; i++)
			a[i * N + i] += 50;
		cblas_dtrsm(102, 141, 122, 111, 131, N, N, 1, a, N, b, N);
		dgesv_(&n, &n, a, &n, pivots, b, &n, &info);
	}
	printf("%f\n", sum);
	return 0;
}
