// Names ranges with ROCTX, and writes down what it did, as ranges_nvtx.c does.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void roctxMarkA(const char *text);
int roctxRangePushA(const char *text);
int roctxRangePop(void);
uint64_t roctxRangeStartA(const char *text);
void roctxRangeStop(uint64_t id);

static FILE *truth;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static void spin(unsigned ns)
{
    for (uint64_t until = now() + ns; now() < until;) {
    }
}

static void wrote(char form, long tid, const char *name, uint64_t a, uint64_t b, uint64_t c,
    uint64_t d)
{
    fprintf(truth, "%c\t%d\t%ld\t%s\t\t%lu\t%lu\t%lu\t%lu\n", form, (int)getpid(), tid, name, a, b,
        c, d);
}

static void *work(void *unused)
{
    (void)unused;
    long tid = syscall(SYS_gettid);
    for (int i = 0; i < 50; i++) {
        uint64_t a = now();
        int level = roctxRangePushA("outer");
        uint64_t b = now();
        spin(50000);
        uint64_t c = now();
        roctxRangePushA("inner");
        uint64_t d = now();
        spin(20000);
        uint64_t e = now();
        roctxMarkA("marked");
        uint64_t f = now();
        roctxRangePop();
        uint64_t g = now();
        if (roctxRangePop() != level)
            abort();
        uint64_t h = now();
        wrote('m', tid, "marked", e, f, e, f);
        wrote('n', tid, "inner", c, d, f, g);
        wrote('n', tid, "outer", a, b, g, h);
    }
    return NULL;
}

static void *stopper(void *id)
{
    roctxRangeStop(*(uint64_t *)id);
    return NULL;
}

int main(void)
{
    const char *file = getenv("RANGES_TRUTH");
    truth = fopen(file ? file : "/dev/null", "a");
    pthread_t other;
    uint64_t a = now();
    uint64_t id = roctxRangeStartA("on two threads");
    uint64_t b = now();
    work(NULL);
    uint64_t c = now();
    pthread_create(&other, NULL, stopper, &id);
    pthread_join(other, NULL);
    wrote('l', getpid(), "on two threads", a, b, c, now());
    printf("done %d\n", (int)id);
    fclose(truth);
    return 0;
}
