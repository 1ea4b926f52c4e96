/* Captures graphs on the virtual CUDA driver and replays them: `cuda_graphs MODE`.
 *
 *   eager     one graph of two layers, work outside of it after each replay.
 *   alone     nothing but the graph after the capture.
 *   thread    another thread replays it than the one that captured it.
 *   several   two graphs in turn, with kernels of the same names.
 *   again     another capture takes the place of the first in the same executable graph.
 *   child     a graph in another one.
 *
 * The truth file names the one of `layer_a`, `layer_b` and `tail` that each operation is of.
 */
#include "known.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
int cuInit(unsigned);
int cuStreamCreate(void **, unsigned);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuStreamBeginCapture_v2(void *, unsigned);
int cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, uint64_t);
int cuGraphExecUpdate_v2(void *, void *, void *);
int cuGraphAddChildGraphNode(void **, void *, const void *, size_t, void *);
int cuGraphDestroy(void *);
int cuGraphLaunch(void *, void *);
int cuStreamSynchronize(void *);
int cuCtxSynchronize(void);
void vcuda_path(const char *);
enum { STEPS = 60 };
static void *stream, *small, *large;
static void launch(void *kernel) { cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, 0, 0); }
__attribute__((noinline)) void layer_a(void) {
    vcuda_path("layer_a");
    for (int i = 0; i < 3; i++) launch(small);
    launch(large);
    cuMemsetD8Async(4096, 0, 1 << 20, stream);
    __asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void layer_b(void) {
    vcuda_path("layer_b");
    launch(large);
    cuMemcpyHtoDAsync_v2(4096, "x", 1 << 18, stream);
    for (int i = 0; i < 2; i++) launch(small);
    __asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void tail(void) {
    vcuda_path("tail");
    launch(small);
    __asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void decode_step(void *exec) {
    cuGraphLaunch(exec, stream);
    __asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void *capture(void (*one)(void), void (*other)(void)) {
    void *graph;
    cuStreamBeginCapture_v2(stream, 0);
    one();
    if (other) other();
    cuStreamEndCapture(stream, &graph);
    return graph;
}
static void *executable(void *graph) {
    void *exec;
    cuGraphInstantiateWithFlags(&exec, graph, 0);
    cuGraphDestroy(graph);
    return exec;
}
static void *replay(void *exec) {
    for (int i = 0; i < STEPS; i++) decode_step(exec);
    cuStreamSynchronize(stream);
    return 0;
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (cuInit(0)) return 1;
    cuModuleGetFunction(&small, 0, "small_40");
    cuModuleGetFunction(&large, 0, "large_150");
    cuStreamCreate(&stream, 0);
    wait_until_known();
    tail();
    if (!strcmp(mode, "eager")) {
        void *exec = executable(capture(layer_a, layer_b));
        for (int i = 0; i < STEPS; i++) {
            decode_step(exec);
            tail();
        }
    } else if (!strcmp(mode, "alone")) {
        replay(executable(capture(layer_b, layer_a)));
    } else if (!strcmp(mode, "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, replay, executable(capture(layer_a, layer_b)));
        for (int i = 0; i < STEPS; i++) tail();
        pthread_join(thread, 0);
    } else if (!strcmp(mode, "several")) {
        void *one = executable(capture(layer_a, 0)), *other = executable(capture(layer_b, 0));
        for (int i = 0; i < STEPS; i++) {
            decode_step(i % 3 ? one : other);
            if (i % 7 == 0) tail();
        }
    } else if (!strcmp(mode, "again")) {
        void *exec = executable(capture(layer_a, 0));
        replay(exec);
        void *graph = capture(layer_b, 0);
        cuGraphExecUpdate_v2(exec, graph, 0);
        cuGraphDestroy(graph);
        replay(exec);
    } else if (!strcmp(mode, "child")) {
        void *graph = capture(layer_a, 0), *child = capture(layer_b, 0), *node;
        cuGraphAddChildGraphNode(&node, graph, 0, 0, child);
        cuGraphDestroy(child);
        replay(executable(graph));
    } else {
        return 2;
    }
    cuCtxSynchronize();
    return 0;
}
