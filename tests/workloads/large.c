/*
 * frames.c behind 10 MiB of other code: a program whose unwind tables are read when
 * its code runs, not as a whole when it is first seen.
 */
__asm__(".text\n.fill 10 << 20, 1, 0x90\n");

#include "frames.c"
