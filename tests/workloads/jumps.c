/*
 * Leaves functions in other ways than by returning: longjmp out of many frames,
 * siglongjmp out of a handler, signals at any instruction, on the same stack and on
 * one of their own, a handler that is interrupted itself, and coroutines.
 */
#include "work.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

static jmp_buf back;
static sigjmp_buf out;
static volatile unsigned long sink;
static volatile int may_leave;

static NOINLINE UNUSED unsigned long deep(unsigned n);

static NOINLINE unsigned long deep(unsigned n)
{
	volatile unsigned long pad[3] = { n };
	if (n == 0)
		longjmp(back, 1);
	return deep(n - 1) + pad[0];
}

static NOINLINE unsigned long small(unsigned long n)
{
	return burn(20) + n;
}

static NOINLINE void on_usr1(int number)
{
	for (int i = 0; i < 20; i++)
		sink += small((unsigned long)number);
	raise(SIGUSR2);
}

static NOINLINE void on_usr2(int number)
{
	for (int i = 0; i < 20; i++)
		sink += small((unsigned long)number);
	if (may_leave)
		siglongjmp(out, 1);
}

static NOINLINE void on_alarm(int number)
{
	sink += small((unsigned long)number);
}

static ucontext_t here, there;
static char other[65536];

static void coroutine(void)
{
	for (;;) {
		for (int i = 0; i < 20; i++)
			sink += small(3);
		swapcontext(&there, &here);
	}
}

static NOINLINE void round_of_all(unsigned n)
{
	if (setjmp(back) == 0)
		sink += deep(n % 50);
	if (sigsetjmp(out, 1) == 0) {
		may_leave = n & 1;
		raise(n & 2 ? SIGUSR1 : SIGUSR2);
	}
	may_leave = 0;
	swapcontext(&here, &there);
}

int main(int argc, char **argv)
{
	static char alternate[65536];
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	struct sigaction action = { .sa_handler = on_usr1 };
	struct itimerval soon = { { 0, 3000 }, { 0, 3000 } };

	work_begin(argc, argv);
	sigaltstack(&stack, NULL);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGALRM, &(struct sigaction){ .sa_handler = on_alarm }, NULL);
	action.sa_handler = on_usr2;
	action.sa_flags = SA_ONSTACK;
	sigaction(SIGUSR2, &action, NULL);
	getcontext(&there);
	there.uc_stack.ss_sp = other;
	there.uc_stack.ss_size = sizeof(other);
	makecontext(&there, coroutine, 0);
	setitimer(ITIMER_REAL, &soon, NULL);
	for (unsigned n = 0; n & 63 || work_left(); n++)
		round_of_all(n);
	return 0;
}
