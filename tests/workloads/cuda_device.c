/* A virtual CUDA driver (libcuda.so.1), *synthetic*: streams are threads that "run" work for
 * the time in its name. It loads CUDA_INJECTION64_PATH when it starts, as the real one
 * does, and writes a truth file (VCUDA_TRUTH): what ran when, for which call of which thread.
 * With VCUDA_LAUNCH_NS a launch keeps its thread busy for so long. `vcuda_path` names the path
 * that gives work from then on, in the truth only: that of a graph's work is the one that put it
 * into the graph.
 * Functions, arguments and layouts are those of cuda.h of CUDA 12.9. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "cuda_device.h"

struct work {
    struct vcuda_work told;
    uint64_t queued;
    struct work *next;
};
struct stream {
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct work *first, **last;
    unsigned queued, done, number;
    struct graph *capture;
};
/* Also an executable one: work in the order in which it was put there. */
struct graph {
    struct vcuda_work *work;
    unsigned length;
};
static _Thread_local const char *path = "-";
void vcuda_path(const char *name) { path = name; }
static struct stream *streams[64];
static unsigned n_streams;
static pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;
static FILE *truth;
static struct vcuda_sink sink;
static uint32_t correlations;
static uint64_t launch_ns;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void vcuda_set_sink(const struct vcuda_sink *to) { sink = *to; }

static void *run(void *arg) {
    struct stream *s = arg;
    uint64_t free_at = 0;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->first) pthread_cond_wait(&s->change, &s->lock);
        struct work *w = s->first;
        pthread_mutex_unlock(&s->lock);
        /* Exact however late this thread wakes, where launches have a length. */
        uint64_t start = (launch_ns ? w->queued : now()) + 2000;
        if (start < free_at) start = free_at;
        free_at = start + w->told.length;
        struct timespec until = {(time_t)(free_at / 1000000000ull), (long)(free_at % 1000000000ull)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        w->told.start = start;
        w->told.end = free_at;
        pthread_mutex_lock(&all);
        if (truth)
            fprintf(truth, "%d %s %u %u %lu %lu %u %lu %s\n", w->told.what, w->told.name, w->told.tid,
                w->told.correlation, (unsigned long)start, (unsigned long)free_at, w->told.stream,
                (unsigned long)w->told.bytes, w->told.path);
        pthread_mutex_unlock(&all);
        if (sink.work) sink.work(&w->told);
        pthread_mutex_lock(&s->lock);
        s->first = w->next;
        if (!s->first) s->last = &s->first;
        s->done++;
        pthread_cond_broadcast(&s->change);
        pthread_mutex_unlock(&s->lock);
        free(w);
    }
    return NULL;
}

static struct stream *stream_of(void *handle) {
    if (handle) return handle;
    pthread_mutex_lock(&all);
    if (!streams[0]) {
        struct stream *s = calloc(1, sizeof *s);
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->change, NULL);
        s->last = &s->first;
        s->number = 7;
        streams[0] = s;
        if (!n_streams) n_streams = 1;
        pthread_t t;
        pthread_create(&t, NULL, run, s);
    }
    pthread_mutex_unlock(&all);
    return streams[0];
}

int cuInit(unsigned flags) {
    (void)flags;
    const char *path = getenv("VCUDA_TRUTH");
    if (path) truth = fopen(path, "w");
    const char *busy = getenv("VCUDA_LAUNCH_NS");
    launch_ns = busy ? strtoull(busy, NULL, 10) : 0;
    const char *injected = getenv("CUDA_INJECTION64_PATH");
    if (injected) {
        void *library = dlopen(injected, RTLD_NOW);
        if (!library) return 999;
        int (*start)(void) = (int (*)(void))dlsym(library, "InitializeInjection");
        if (!start || start() != 1) return 999;
    }
    stream_of(NULL);
    return 0;
}

int cuStreamCreate(void **out, unsigned flags) {
    (void)flags;
    struct stream *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    s->last = &s->first;
    pthread_mutex_lock(&all);
    if (!n_streams) n_streams = 1;
    s->number = 7 + n_streams;
    streams[n_streams++] = s;
    pthread_mutex_unlock(&all);
    pthread_t t;
    pthread_create(&t, NULL, run, s);
    *out = s;
    return 0;
}

/* With what a call's work has in common. */
static void put(struct stream *s, struct vcuda_work told, uint32_t correlation) {
    struct work *w = calloc(1, sizeof *w);
    told.correlation = correlation;
    told.tid = (unsigned)gettid();
    told.stream = s->number;
    w->told = told;
    pthread_mutex_lock(&s->lock);
    w->queued = now();
    *s->last = w;
    s->last = &w->next;
    s->queued++;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

static void add(struct graph *g, struct vcuda_work told) {
    g->work = realloc(g->work, (g->length + 1) * sizeof *g->work);
    g->work[g->length++] = told;
}

static void append(struct graph *to, const struct graph *from) {
    for (unsigned i = 0; i < from->length; i++) add(to, from->work[i]);
}

static void enqueue(void *stream, struct vcuda_work told, unsigned call, uint64_t begun) {
    struct stream *s = stream_of(stream);
    uint32_t correlation = __atomic_add_fetch(&correlations, 1, __ATOMIC_RELAXED);
    told.path = path;
    if (s->capture)
        add(s->capture, told);
    else
        put(s, told, correlation);
    if (sink.call) sink.call(call, (unsigned)gettid(), correlation, begun, now());
}

__attribute__((noinline)) int cuStreamBeginCapture_v2(void *stream, unsigned mode) {
    (void)mode;
    stream_of(stream)->capture = calloc(1, sizeof(struct graph));
    return 0;
}

__attribute__((noinline)) int cuStreamEndCapture(void *stream, void **graph) {
    struct stream *s = stream_of(stream);
    *graph = s->capture;
    s->capture = NULL;
    return 0;
}

__attribute__((noinline)) int cuGraphInstantiateWithFlags(void **out, void *graph, uint64_t flags) {
    (void)flags;
    *out = calloc(1, sizeof(struct graph));
    append(*out, graph);
    return 0;
}

__attribute__((noinline)) int cuGraphExecUpdate_v2(void *exec, void *graph, void *result) {
    (void)result;
    ((struct graph *)exec)->length = 0;
    append(exec, graph);
    return 0;
}

__attribute__((noinline)) int cuGraphAddChildGraphNode(void **node, void *graph, const void *after,
    size_t n_after, void *child) {
    (void)node, (void)after, (void)n_after;
    append(graph, child);
    return 0;
}

__attribute__((noinline)) int cuGraphDestroy(void *graph) {
    struct graph *g = graph;
    free(g->work);
    free(g);
    return 0;
}

__attribute__((noinline)) int cuGraphLaunch(void *exec, void *stream) {
    uint64_t begun = now();
    struct graph *g = exec;
    uint32_t correlation = __atomic_add_fetch(&correlations, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < g->length; i++) put(stream_of(stream), g->work[i], correlation);
    if (sink.call) sink.call(514, (unsigned)gettid(), correlation, begun, now());
    return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    *function = strdup(name);
    return 0;
}

/* "spin_30": 30 us. */
static uint64_t length_of(const char *name) {
    const char *digits = strrchr(name, '_');
    return digits ? strtoull(digits + 1, NULL, 10) * 1000 : 1000;
}

__attribute__((noinline)) int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz,
    unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    (void)shared, (void)params, (void)extra;
    uint64_t begun = now();
    while (now() < begun + launch_ns) {}
    struct vcuda_work told = {.what = VCUDA_KERNEL, .name = function, .length = length_of(function),
        .grid = {gx, gy, gz}, .block = {bx, by, bz}};
    enqueue(stream, told, 307, begun);
    return 0;
}

__attribute__((noinline)) int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    (void)to, (void)from;
    uint64_t begun = now();
    struct vcuda_work told = {.what = VCUDA_COPY, .name = "copy", .length = 1000 + bytes / 16, .bytes = bytes};
    enqueue(stream, told, 277, begun);
    return 0;
}

__attribute__((noinline)) int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    (void)to, (void)value;
    uint64_t begun = now();
    struct vcuda_work told = {.what = VCUDA_FILL, .name = "fill", .length = 1000 + bytes / 64, .bytes = bytes};
    enqueue(stream, told, 216, begun);
    return 0;
}

static void drain(struct stream *s) {
    pthread_mutex_lock(&s->lock);
    unsigned until = s->queued;
    while ((int)(s->done - until) < 0) pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

__attribute__((noinline)) int cuStreamSynchronize(void *stream) {
    uint64_t begun = now();
    drain(stream_of(stream));
    if (sink.call) sink.call(126, (unsigned)gettid(), __atomic_add_fetch(&correlations, 1, __ATOMIC_RELAXED), begun, now());
    return 0;
}

__attribute__((noinline)) int cuCtxSynchronize(void) {
    for (unsigned i = 0; i < n_streams; i++)
        if (streams[i]) drain(streams[i]);
    pthread_mutex_lock(&all);
    if (truth) fflush(truth);
    pthread_mutex_unlock(&all);
    return 0;
}
