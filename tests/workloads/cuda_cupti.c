/* CUPTI of the virtual CUDA driver, *synthetic*: the activity part, with the layouts of
 * cupti_activity.h of CUDA 12.9 (CUpti_ActivityKernel9, Memcpy6, Memset4, API). What devices
 * did is in other buffers than the calls, and given back first, as on an H200. Kernels whose
 * name begins with "lost" find no room. With VCUPTI_IMPOSSIBLE=N all but one in N records of
 * work have times that cannot be true. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "cuda_device.h"

typedef void (*requested_t)(uint8_t **, size_t *, size_t *);
typedef void (*completed_t)(void *, uint32_t, uint8_t *, size_t, size_t);
static requested_t requested;
static completed_t completed;
/* The buffers of work and of calls. */
static uint8_t *buffers[2];
static size_t sizes[2], used[2], dropped;
static uint64_t (*clock_of_tool)(void);
static uint64_t kinds;
static unsigned char driver_calls[1024];
static int some_calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t length_of(uint32_t kind) {
    switch (kind) {
    case 1: return 96;
    case 2: return 88;
    case 10: return 208;
    default: return 40;
    }
}

static void give_back(int of) {
    if (!buffers[of]) return;
    uint8_t *full = buffers[of];
    size_t valid = used[of];
    buffers[of] = NULL;
    pthread_mutex_unlock(&lock);
    completed(NULL, 0, full, sizes[of], valid);
    pthread_mutex_lock(&lock);
}

static void add(int of, const void *record, size_t bytes) {
    pthread_mutex_lock(&lock);
    if (buffers[of] && used[of] + bytes > sizes[of]) give_back(of);
    if (!buffers[of]) {
        size_t most = 0;
        requested(&buffers[of], &sizes[of], &most);
        used[of] = 0;
    }
    if (buffers[of]) {
        memcpy(buffers[of] + used[of], record, bytes);
        used[of] += bytes;
    } else {
        dropped++;
    }
    pthread_mutex_unlock(&lock);
}

#define PUT(at, type, value) do { type v_ = (value); memcpy(r + (at), &v_, sizeof v_); } while (0)

static void call(unsigned id, unsigned tid, uint32_t correlation, uint64_t start, uint64_t end) {
    int is_wanted = some_calls ? id < sizeof driver_calls && driver_calls[id] : kinds >> 4 & 1;
    if (!is_wanted) return;
    uint8_t r[40] = {0};
    PUT(0, uint32_t, 4); PUT(4, uint32_t, id); PUT(8, uint64_t, start); PUT(16, uint64_t, end);
    PUT(28, uint32_t, tid); PUT(32, uint32_t, correlation);
    add(1, r, sizeof r);
}

static void work(const struct vcuda_work *w) {
    uint8_t r[208] = {0};
    if (!strncmp(w->name, "lost", 4)) {
        pthread_mutex_lock(&lock);
        dropped++;
        pthread_mutex_unlock(&lock);
        return;
    }
    uint64_t start = w->start, end = w->end;
    static unsigned count;
    unsigned number = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    const char *possible = getenv("VCUPTI_IMPOSSIBLE");
    if (possible && number % (unsigned)atoi(possible)) {
        end = number % 3 ? 0 : start - 1000;
        start = number % 3 == 1 ? 0 : start;
    }
    PUT(16, uint64_t, start); PUT(24, uint64_t, end);
    if (w->what == VCUDA_KERNEL) {
        PUT(0, uint32_t, 10); PUT(40, uint32_t, 0); PUT(44, uint32_t, 1); PUT(48, uint32_t, w->stream);
        memcpy(r + 52, w->grid, 12); memcpy(r + 64, w->block, 12);
        PUT(92, uint32_t, w->correlation); PUT(104, const char *, w->name);
    } else {
        PUT(0, uint32_t, w->what == VCUDA_COPY ? 1 : 2);
        if (w->what == VCUDA_COPY) PUT(4, uint8_t, 1);
        PUT(8, uint64_t, w->bytes); PUT(36, uint32_t, 1); PUT(40, uint32_t, w->stream);
        PUT(44, uint32_t, w->correlation);
    }
    uint32_t kind;
    memcpy(&kind, r, 4);
    if (kinds >> kind & 1) add(0, r, length_of(kind));
}

int cuptiActivityRegisterCallbacks(requested_t r, completed_t c) {
    requested = r;
    completed = c;
    return 0;
}
int cuptiActivityRegisterTimestampCallback(uint64_t (*clock)(void)) {
    clock_of_tool = clock;
    return 0;
}
int cuptiSetThreadIdType(int type) { return type == 1 ? 0 : 1; }
int cuptiActivityEnable(uint32_t kind) {
    if (!requested || !clock_of_tool) return 1;
    void (*set)(const struct vcuda_sink *) = (void (*)(const struct vcuda_sink *))dlsym(RTLD_DEFAULT, "vcuda_set_sink");
    if (!set) return 2;
    struct vcuda_sink sink = {call, work};
    set(&sink);
    kinds |= 1ull << kind;
    return 0;
}
int cuptiActivityEnableDriverApi(uint32_t id, uint8_t on) {
    if (id >= sizeof driver_calls) return 1;
    driver_calls[id] = on;
    some_calls = 1;
    return 0;
}
int cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    pthread_mutex_lock(&lock);
    give_back(0);
    give_back(1);
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t *from, size_t valid, uint8_t **record) {
    uint8_t *next = *record ? *record + length_of(*(uint32_t *)*record) : from;
    if (next >= from + valid) return 12;
    *record = next;
    return 0;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    pthread_mutex_lock(&lock);
    *count = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}
