/* Two named threads, each in its own function, and a main that waits. */
#include "work.h"

#include <pthread.h>

static volatile unsigned long sink;

static NOINLINE void spin_a(void) { sink += burn(2 * MILLISECOND); }
static NOINLINE void spin_b(void) { sink += burn(2 * MILLISECOND); }

static void *thread_a(void *arg)
{
	pthread_setname_np(pthread_self(), "worker-a");
	while (work_left())
		spin_a();
	return arg;
}

static void *thread_b(void *arg)
{
	pthread_setname_np(pthread_self(), "worker-b");
	while (work_left())
		spin_b();
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t a, b;
	work_begin(argc, argv);
	if (pthread_create(&a, NULL, thread_a, NULL) || pthread_create(&b, NULL, thread_b, NULL))
		return 1;
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	return 0;
}
