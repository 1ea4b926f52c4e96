// A workload in which nearly every sample has a stack of its own: a random walk
// down a tree of calls, 8 ways at each of 20 levels. Runs until it is killed.
volatile unsigned long sink;
static unsigned long state = 88172645463325252UL;

static unsigned next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 20) & 7;
}

__attribute__((noinline)) long leaf(int n)
{
    long s = 0;
    for (int i = 0; i < n; i++)
        s += sink ^ i;
    return s;
}

typedef long (*call)(int);
extern call const calls[8];

#define WAY(n) \
    __attribute__((noinline)) long way##n(int depth) \
    { \
        long r = depth == 0 ? leaf(20000 + n) : calls[next()](depth - 1); \
        sink += r; \
        return r + n; \
    }

WAY(0) WAY(1) WAY(2) WAY(3) WAY(4) WAY(5) WAY(6) WAY(7)

call const calls[8] = {way0, way1, way2, way3, way4, way5, way6, way7};

int main(int argc, char **argv)
{
    // Two copies on two CPUs are to take different walks.
    state += argc > 1 ? (unsigned long)argv[1][0] << 32 : 0;
    for (;;)
        sink += calls[next()](20);
}
