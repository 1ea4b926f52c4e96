/* Contexts whose stacks begin where no call has led.
 *
 * contexts SECONDS HOW: "ucontext" uses makecontext and swapcontext. "hand" switches by hand: the
 * first function returns to the start of another one. With "zero" its return address is zero.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "on_cpu.h"

enum { STACK = 64 * 1024 };

static volatile uint64_t sum;
static ucontext_t outside, inside;
static void *outside_sp, *inside_sp;
static int by_hand;

/* Saves the callee's registers on the stack, and goes on on another one. */
void hop(void **from, void *to);
__asm__(".text\n"
        ".globl hop\n"
        ".type hop, @function\n"
        "hop:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "ret\n"
        ".size hop, .-hop\n");

__attribute__((noinline)) static void spin(void)
{
	for (uint64_t i = 0; i < 200000; i++)
		sum += i * i;
}

__attribute__((noinline)) static void leave(void)
{
	if (by_hand)
		hop(&inside_sp, outside_sp);
	else
		swapcontext(&inside, &outside);
}

__attribute__((noinline)) static void work(void)
{
	spin();
	leave();
	__asm__ volatile("");
}

__attribute__((noinline)) static void first(void)
{
	for (;;)
		work();
}

/* Where the first function would return to. */
__attribute__((noinline, noreturn)) static void ended(void)
{
	_exit(3);
}

__attribute__((noinline)) static void enter(void)
{
	if (by_hand)
		hop(&outside_sp, inside_sp);
	else
		swapcontext(&outside, &inside);
	__asm__ volatile("");
}

int main(int count, char **arguments)
{
	const char *mode = count > 2 ? arguments[2] : "ucontext";
	char *stack = aligned_alloc(4096, STACK);
	if (!stack)
		return 1;
	/* What is above must not look like a frame by accident. */
	uint64_t *top = (uint64_t *)(stack + STACK) - 8;
	for (int i = 0; i < 8; i++)
		top[i] = (uint64_t)main + 5;
	by_hand = strcmp(mode, "ucontext") != 0;
	if (by_hand) {
		top[0] = strcmp(mode, "zero") ? (uint64_t)ended : 0;
		*--top = (uint64_t)first;
		top -= 6;
		memset(top, 0, 6 * sizeof *top);
		inside_sp = top;
	} else {
		getcontext(&inside);
		inside.uc_stack.ss_sp = stack;
		inside.uc_stack.ss_size = STACK;
		makecontext(&inside, first, 0);
	}
	printf("pid %d\n", getpid());
	fflush(stdout);
	long end = on_cpu() + (long)(1e9 * atof(arguments[1]));
	while (on_cpu() < end)
		enter();
	return 0;
}
