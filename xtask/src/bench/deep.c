// A workload with a known stack: every sample is in spin, called through f1 to f26 from main, 30
// frames with the C library's two and _start. Runs until it is killed; with TIMES, as many rounds
// as its argument. Each function differs, so that the compiler keeps all of them, and each works
// after its call, so that no call becomes a jump.
volatile unsigned long sink;

__attribute__((noinline)) long spin(int n)
{
    long s = 0;
#ifdef FRAME_POINTERS
    // Whatever the options, gcc 12 gives a leaf that needs no stack no frame,
    // and then its caller is missing from every frame pointer walk.
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
#endif
    for (int i = 0; i < n; i++)
        s += sink ^ i;
    return s;
}

#define F(n, callee) \
    __attribute__((noinline)) long f##n(int k) \
    { \
        long r = callee; \
        sink += r; \
        return r + n; \
    }

F(1, spin(k * 500)) F(2, f1(k)) F(3, f2(k)) F(4, f3(k)) F(5, f4(k)) F(6, f5(k))
F(7, f6(k)) F(8, f7(k)) F(9, f8(k)) F(10, f9(k)) F(11, f10(k)) F(12, f11(k))
F(13, f12(k)) F(14, f13(k)) F(15, f14(k)) F(16, f15(k)) F(17, f16(k))
F(18, f17(k)) F(19, f18(k)) F(20, f19(k)) F(21, f20(k)) F(22, f21(k))
F(23, f22(k)) F(24, f23(k)) F(25, f24(k)) F(26, f25(k))

#ifdef TIMES
#include <stdlib.h>

int main(int argc, char **argv)
{
    for (int n = argc > 1 ? atoi(argv[1]) : 0; n > 0; n--)
        sink += f26(100);
    return 0;
}
#else
int main(void)
{
    for (;;)
        sink += f26(100);
}
#endif
