/*
 * Spends most of its time in a handler of SIGALRM, on the normal stack or
 * ("alt" as second argument) on an alternate one. The interrupted function
 * calls a small one in a loop, so that signals also land in prologues,
 * epilogues and between call and return.
 */
#include "work.h"

#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t done;
static volatile unsigned long sink;

static void arm(void)
{
	struct itimerval one = { .it_value = { 0, 1000 } };
	setitimer(ITIMER_REAL, &one, NULL);
}

static NOINLINE unsigned long handler_work(unsigned long n)
{
	return burn(n);
}

static NOINLINE void on_alarm(int number)
{
	sink += handler_work(8 * MILLISECOND) + (unsigned long)number;
	done = !work_left();
	if (!done)
		arm();
}

static NOINLINE unsigned long tick(unsigned long n)
{
	volatile unsigned long pad[4] = { n };
	return pad[0] + 1;
}

static NOINLINE void interrupted(void)
{
	unsigned long n = 0;
	while (!done)
		n = tick(n);
	sink = n;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_alarm };
	if (argc > 2 && !strcmp(argv[2], "alt")) {
		static char stack[65536];
		stack_t alt = { .ss_sp = stack, .ss_size = sizeof stack };
		sigaltstack(&alt, NULL);
		action.sa_flags = SA_ONSTACK;
	}
	sigaction(SIGALRM, &action, NULL);
	work_begin(argc, argv);
	arm();
	interrupted();
	return 0;
}
