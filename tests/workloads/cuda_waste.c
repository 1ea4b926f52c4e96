/* Gives the virtual CUDA driver work in a bad way (`cuda_waste MODE`), or the same work in a good
 * way (`cuda_waste MODE-clean`).
 *
 *   starved   the batch of each step is made between two kernels; clean: before the loop.
 *   sync      waits for each kernel before it prepares the next; clean: at the end.
 *   short     much work in kernels of 4 us; clean: the same in kernels of 400 us.
 *   copy      copies on the kernels' stream; clean: on one of its own.
 */
#include <stdint.h>
#include <string.h>
#include <time.h>
int cuInit(unsigned);
int cuStreamCreate(void **, unsigned);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuStreamSynchronize(void *);
int cuCtxSynchronize(void);
static void *kernels, *copies;
static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static volatile unsigned sink;
static void work_until(uint64_t end) {
    while (now() < end) sink++;
}
__attribute__((noinline)) void next_batch(unsigned us) {
    work_until(now() + us * 1000ull);
    __asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void prepare(unsigned us) {
    work_until(now() + us * 1000ull);
    __asm__ volatile("" ::: "memory");
}
static void *function(const char *name) {
    void *found;
    cuModuleGetFunction(&found, 0, name);
    return found;
}
static void launch(void *kernel) { cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, kernels, 0, 0); }
static void starved(int is_clean) {
    void *kernel = function("train_2000");
    for (int i = 0; i < 100; i++) {
        if (!is_clean) next_batch(8000);
        launch(kernel);
    }
}
static void sync(int is_clean) {
    void *kernel = function("train_4000");
    for (int i = 0; i < 100; i++) {
        prepare(3000);
        launch(kernel);
        if (!is_clean) cuStreamSynchronize(kernels);
    }
}
static void shorts(int is_clean) {
    void *kernel = function(is_clean ? "train_400" : "train_4");
    for (int i = 0; i < (is_clean ? 100 : 10000); i++) launch(kernel);
}
static void copy(int is_clean) {
    void *kernel = function("train_3000");
    for (int i = 0; i < 100; i++) {
        cuMemcpyHtoDAsync_v2(4096, kernel, 48000000, is_clean ? copies : kernels);
        launch(kernel);
    }
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int is_clean = strstr(mode, "-clean") != 0;
    if (cuInit(0)) return 1;
    cuStreamCreate(&kernels, 0);
    cuStreamCreate(&copies, 0);
    launch(function("warm_1000"));
    cuCtxSynchronize();
    if (!strncmp(mode, "starved", 7)) starved(is_clean);
    else if (!strncmp(mode, "sync", 4)) sync(is_clean);
    else if (!strncmp(mode, "short", 5)) shorts(is_clean);
    else if (!strncmp(mode, "copy", 4)) copy(is_clean);
    else return 2;
    cuCtxSynchronize();
    return 0;
}
