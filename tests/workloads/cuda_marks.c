/* A library with two functions of CUDA's driver that do nothing: what is launched is the
 * name that the program gives. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = strdup(name);
    return 0;
}
__attribute__((noinline)) int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz,
    unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    __asm__ volatile("" ::: "memory");
    return 0;
}
int each(int (*callback)(int), int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += callback(i);
    return sum;
}
