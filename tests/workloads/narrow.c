/*
 * A program of 32 bits without any library, so that every compiler for x86-64 can make it:
 * _start, main, work, outer, inner. Its first argument is how many blocks of some 50 ms it works.
 */
typedef unsigned int word;

#define NOINLINE __attribute__((noinline, noclone, used))

static volatile word sink;

NOINLINE static word inner(word n)
{
	word x = n | 1;
	for (word i = 0; i < n; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		__asm__ volatile("" : "+r"(x));
	}
	return x;
}

NOINLINE static word outer(word n)
{
	return inner(n) + 2;
}

NOINLINE static word work(const char *blocks)
{
	word n = 0;
	while (*blocks >= '0' && *blocks <= '9')
		n = n * 10 + (word)(*blocks++ - '0');
	for (word i = 0; i < n; i++)
		sink += outer(25000000);
	return 0;
}

int main(int argc, char **argv)
{
	word status = work(argc > 1 ? argv[1] : "20");
	return (int)status;
}

/* The kernel starts it with the count of arguments on top of the stack, and they follow. */
__asm__(".globl _start\n"
	".type _start, @function\n"
	"_start:\n"
	"	.cfi_startproc\n"
	"	.cfi_undefined eip\n"
	"	xor %ebp, %ebp\n"
	"	mov (%esp), %eax\n"
	"	lea 4(%esp), %edx\n"
	"	and $-16, %esp\n"
	"	sub $8, %esp\n"
	"	push %edx\n"
	"	push %eax\n"
	"	call main\n"
	"	mov %eax, %ebx\n"
	"	mov $1, %eax\n"
	"	int $0x80\n"
	"	.cfi_endproc\n"
	".size _start, . - _start\n");
