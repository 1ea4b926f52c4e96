/* Loops in a function of its own, in one of a library, and in system calls. These give the
 * three kinds of names that a profile of another user's program has. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

void loop_in_library(long turns);

__attribute__((noinline)) void loop_in_program(long turns)
{
    for (volatile long i = 0; i < turns; i++)
        ;
}

int main(void)
{
    int zero = open("/dev/zero", O_RDONLY);
    static char bytes[1 << 16];
    puts("ready");
    fflush(stdout);
    for (;;) {
        loop_in_program(3000000);
        loop_in_library(3000000);
        for (int i = 0; i < 300; i++)
            if (read(zero, bytes, sizeof bytes) < 0)
                return 1;
    }
}
