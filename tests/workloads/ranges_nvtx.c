// Names ranges with NVIDIA's own headers (nvtx3), and writes down what it did. A line for
// each range has its thread, its name, and the clock before and after each call.
//
//   ranges_nvtx plain | pops | many N | threads N | fork | signals N | leave
//
// The lines go to the file that RANGES_TRUTH names. What it prints does not depend on who
// listens.
#define _GNU_SOURCE
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static FILE *truth;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

struct range {
    const char *name, *domain;
    uint64_t begin[2], end[2];
    long tid;
};

static void began(struct range *range, const char *name, const char *domain, uint64_t before)
{
    *range = (struct range){ .name = name, .domain = domain, .tid = syscall(SYS_gettid) };
    range->begin[0] = before;
    range->begin[1] = now();
}

// form: n nested, l loose, m moment
static void ended(struct range *range, char form, uint64_t before)
{
    range->end[0] = before;
    range->end[1] = now();
    pthread_mutex_lock(&lock);
    fprintf(truth, "%c\t%d\t%ld\t%s\t%s\t%lu\t%lu\t%lu\t%lu\n", form, (int)getpid(), range->tid,
        range->name, range->domain, range->begin[0], range->begin[1], range->end[0],
        range->end[1]);
    pthread_mutex_unlock(&lock);
}

static void spin(unsigned ns)
{
    for (uint64_t until = now() + ns; now() < until;) {
    }
}

static nvtxEventAttributes_t attributes(void)
{
    nvtxEventAttributes_t a;
    memset(&a, 0, sizeof a);
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    return a;
}

static void *ender(void *range)
{
    nvtxRangeEnd(*(nvtxRangeId_t *)range);
    return NULL;
}

static void plain(void)
{
    struct range outer, inner, own, wide, loose, other, mark;
    uint64_t t = now();
    printf("push %d\n", nvtxRangePushA("outer range"));
    began(&outer, "outer range", "", t);
    spin(200000);
    for (int i = 0; i < 3; i++) {
        t = now();
        printf("push %d\n", nvtxRangePushA("inner"));
        began(&inner, "inner", "", t);
        spin(100000);
        t = now();
        printf("pop %d\n", nvtxRangePop());
        ended(&inner, 'n', t);
    }
    nvtxDomainHandle_t domain = nvtxDomainCreateA("my.library");
    nvtxStringHandle_t text = nvtxDomainRegisterStringA(domain, "registered text");
    nvtxDomainNameCategoryA(domain, 4, "io");
    nvtxEventAttributes_t a = attributes();
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = text;
    a.category = 4;
    a.payloadType = NVTX_PAYLOAD_TYPE_INT32;
    a.payload.iValue = -17;
    t = now();
    nvtxDomainRangePushEx(domain, &a);
    began(&own, "registered text", "my.library", t);
    spin(50000);
    t = now();
    nvtxDomainRangePop(domain);
    ended(&own, 'n', t);
    t = now();
    nvtxRangePushW(L"gr\u00f6\u00dfe \u20ac \U0001f600");
    began(&wide, "gr\303\266\303\237e \342\202\254 \360\237\230\200", "", t);
    t = now();
    nvtxMarkA("a moment");
    began(&mark, "a moment", "", t);
    ended(&mark, 'm', t);
    spin(20000);
    t = now();
    nvtxRangePop();
    ended(&wide, 'n', t);

    a = attributes();
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = "on any thread";
    a.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
    a.payload.dValue = 0.25;
    t = now();
    nvtxRangeId_t id = nvtxRangeStartEx(&a);
    began(&loose, "on any thread", "", t);
    t = now();
    nvtxRangeId_t second = nvtxDomainRangeStartEx(domain, &a);
    began(&other, "on any thread", "my.library", t);
    spin(50000);
    pthread_t thread;
    uint64_t before = now();
    pthread_create(&thread, NULL, ender, &id);
    pthread_join(thread, NULL);
    ended(&loose, 'l', before);
    t = now();
    nvtxDomainRangeEnd(domain, second);
    ended(&other, 'l', t);
    t = now();
    nvtxRangePop();
    ended(&outer, 'n', t);
    printf("ids differ %d\n", id != second || id == 0);
}

// More ends than begins, and a begin without an end.
static void pops(void)
{
    struct range range;
    for (int i = 0; i < 3; i++)
        printf("pop %d\n", nvtxRangePop());
    nvtxRangeEnd(987654321);
    uint64_t t = now();
    nvtxRangePushA("paired");
    began(&range, "paired", "", t);
    spin(10000);
    t = now();
    nvtxRangePop();
    ended(&range, 'n', t);
    char *text = malloc(5001);
    memset(text, 'x', 5000);
    text[5000] = 0;
    nvtxRangePushA(text);
    nvtxRangePop();
    free(text);
    nvtxRangePushA(NULL);
    nvtxRangePop();
    nvtxRangePushEx(NULL);
    nvtxRangePop();
    nvtxRangePushA("never popped");
    nvtxRangeStartA("never ended");
}

static void many(long n)
{
    struct range range;
    uint64_t t = now();
    nvtxRangePushA("all of them");
    began(&range, "all of them", "", t);
    for (long i = 0; i < n; i++) {
        nvtxRangePushA("one of many");
        nvtxRangePop();
    }
    t = now();
    nvtxRangePop();
    ended(&range, 'n', t);
    fprintf(stderr, "many took %lu ns\n", t - range.begin[1]);
}

static void *leaver(void *unused)
{
    (void)unused;
    struct range range;
    uint64_t t = now();
    nvtxRangePushA("left open by a thread");
    began(&range, "left open by a thread", "", t);
    spin(100000);
    t = now();
    // 'o': it ends with its thread.
    ended(&range, 'o', t);
    return NULL;
}

static void threads(int n)
{
    for (int i = 0; i < n; i += 4) {
        pthread_t some[4];
        for (int j = 0; j < 4; j++)
            pthread_create(&some[j], NULL, leaver, NULL);
        for (int j = 0; j < 4; j++)
            pthread_join(some[j], NULL);
    }
}

static void forks(void)
{
    struct range around, own;
    uint64_t t = now();
    nvtxRangePushA("around the fork");
    began(&around, "around the fork", "", t);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        t = now();
        nvtxRangePushA("of the child");
        began(&own, "of the child", "", t);
        spin(100000);
        t = now();
        nvtxRangePop();
        ended(&own, 'n', t);
        // Begun by the parent.
        nvtxRangePop();
        printf("child done\n");
        exit(0);
    }
    waitpid(child, NULL, 0);
    t = now();
    nvtxRangePop();
    ended(&around, 'n', t);
}

static void handler(int signal)
{
    (void)signal;
    nvtxRangePushA("in a handler");
    nvtxRangePop();
}

static void signals(long n)
{
    // While NVTX starts, a handler that calls it would wait for its own thread.
    nvtxRangePushA("first");
    nvtxRangePop();
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGPROF, &action, NULL);
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF };
    struct itimerspec every = { { 0, 20000 }, { 0, 20000 } };
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &every, NULL);
    for (long i = 0; i < n; i++) {
        nvtxRangePushA("interrupted");
        nvtxRangePop();
    }
    timer_delete(timer);
}

// Runs on after the first thread has ended; exit() comes with its own end.
static void *stay(void *first)
{
    pthread_join(*(pthread_t *)first, NULL);
    plain();
    return NULL;
}

static void leave(void)
{
    static pthread_t first, other;
    first = pthread_self();
    pthread_create(&other, NULL, stay, &first);
    pthread_detach(other);
    pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    const char *file = getenv("RANGES_TRUTH");
    truth = fopen(file ? file : "/dev/null", "a");
    const char *mode = argc > 1 ? argv[1] : "plain";
    long n = argc > 2 ? atol(argv[2]) : 1000;
    if (!strcmp(mode, "plain"))
        plain();
    else if (!strcmp(mode, "pops"))
        pops();
    else if (!strcmp(mode, "many"))
        many(n);
    else if (!strcmp(mode, "threads"))
        threads(n);
    else if (!strcmp(mode, "fork"))
        forks();
    else if (!strcmp(mode, "signals"))
        signals(n);
    else if (!strcmp(mode, "leave"))
        leave();
    printf("done\n");
    fclose(truth);
    return 0;
}
