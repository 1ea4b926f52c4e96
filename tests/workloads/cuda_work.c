/* Gives the virtual CUDA driver work: two paths, streams and threads. Some waits are for
 * several streams or for several operations at once. Prints how often it did what. */
#include "known.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned);
int cuStreamCreate(void **, unsigned);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuStreamSynchronize(void *);
int cuCtxSynchronize(void);
static void *short_one, *long_one, *lost_one;
__attribute__((noinline)) void path_short(void *stream) {
    cuLaunchKernel(short_one, 4, 2, 1, 64, 1, 1, 0, stream, 0, 0);
    __asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void path_long(void *stream) {
    cuLaunchKernel(long_one, 100, 1, 1, 128, 2, 1, 0, stream, 0, 0);
    __asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void path_copy(void *stream, int i) {
    cuMemcpyHtoDAsync_v2(4096, &i, 1024u * (unsigned)(i + 1), stream);
    __asm__ volatile("" ::: "memory");
}
static int rounds = 20;
static void *one(void *arg) {
    void *stream = arg;
    for (int i = 0; i < rounds; i++) {
        path_copy(stream, i);
        for (int k = 0; k < 3; k++) path_short(stream);
        path_long(stream);
        if (i % 5 == 4) cuStreamSynchronize(stream);
        usleep(300);
    }
    return NULL;
}
int main(int argc, char **argv) {
    if (argc > 1) rounds = atoi(argv[1]);
    if (cuInit(0)) return 1;
    cuModuleGetFunction(&short_one, 0, "_Z8spin_30Pf_30");
    cuModuleGetFunction(&long_one, 0, "matmul_200");
    cuModuleGetFunction(&lost_one, 0, "lost_10");
    wait_until_known();
    void *streams[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        cuStreamCreate(&streams[i], 0);
        pthread_create(&threads[i], 0, one, streams[i]);
    }
    for (int i = 0; i < rounds; i++) {
        cuMemsetD8Async(4096, 0, 64u * 1024, 0);
        path_long(0);
    }
    if (argc > 2) cuLaunchKernel(lost_one, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    cuCtxSynchronize();
    printf("short=%d long=%d copies=%d fills=%d\n", 6 * rounds, 3 * rounds, 2 * rounds, rounds);
    return 0;
}
