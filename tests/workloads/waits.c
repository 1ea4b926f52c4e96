/*
 * Waits in functions named after what they wait for, and prints how long each took: by the
 * clock before and after each wait, less the time on a CPU. For threads that share a CPU it
 * prints how long they waited for it by the scheduler's account. `NAME_most` is the longest of them,
 * `short_sleeps_drawn` how long the recorded ones are together, on average: a wait of 0.1 ms is
 * recorded in one of 10 cases.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "on_cpu.h"

#define NOINLINE __attribute__((noinline))
#define MILLISECOND 1000000L

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* Time in which the thread was not on a CPU. */
static long idle(void) { return now() - on_cpu(); }

static void nap(long ns)
{
	struct timespec t = {ns / 1000000000L, ns % 1000000000L};
	nanosleep(&t, NULL);
}

/* What a recorded wait stands for at 997 Hz, if it is shorter. */
#define PERIOD 1003009L

static void add(long took, long *sum, long *most, double *drawn)
{
	*sum += took;
	if (took > *most)
		*most = took;
	*drawn += took < PERIOD ? (double)took * took / PERIOD : took;
}

/* One function of its own name, which takes the time of each wait. */
#define WAITS(name, is_more, wait)                                                                 \
	static long name##_ns, name##_most;                                                        \
	static double name##_drawn;                                                                \
	static NOINLINE void *name(void *argument)                                                 \
	{                                                                                          \
		for (int i = 0; is_more; i++) {                                                    \
			long begin = idle();                                                       \
			wait;                                                                      \
			add(idle() - begin, &name##_ns, &name##_most, &name##_drawn);              \
		}                                                                                  \
		return argument;                                                                   \
	}

static int pipes[2], sockets[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static char byte;
static int turn, file;

static void take_turn(void)
{
	while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) == 0)
		nap(MILLISECOND / 4);
	__atomic_store_n(&turn, 0, __ATOMIC_RELEASE);
}

static void child(void)
{
	pid_t pid;
	if (posix_spawnp(&pid, "sleep", NULL, NULL, (char *[]){"sleep", "0.12", NULL}, environ))
		abort();
	waitpid(pid, NULL, 0);
}

static void sync_file(void)
{
	static char block[1 << 16];
	if (pwrite(file, block, sizeof block, 0) < 0 || fsync(file) < 0)
		abort();
}

static void poll_pipe(void)
{
	struct pollfd p = {.fd = pipes[0], .events = POLLIN};
	if (poll(&p, 1, -1) != 1 || read(pipes[0], &byte, 1) != 1)
		abort();
}

WAITS(long_sleeps, i < 40, nap(15 * MILLISECOND))
/* One wait for each millisecond of 4 s is recorded: 4,000 on average. */
WAITS(short_sleeps, short_sleeps_ns < 4000 * MILLISECOND, nap(20000))
WAITS(poll_sleeps, i < 30, poll(NULL, 0, 20))
WAITS(pipe_reads, i < 25, if (read(pipes[0], &byte, 1) != 1) abort())
WAITS(socket_reads, i < 25, if (recv(sockets[0], &byte, 1, 0) != 1) abort())
WAITS(child_waits, i < 3, child())
WAITS(file_syncs, i < 30, sync_file())
WAITS(poll_pipes, i < 25, poll_pipe())

static long lock_waits_ns, lock_waits_most;
static double lock_waits_drawn;
static NOINLINE void lock_waits(void)
{
	long begin = idle();
	pthread_mutex_lock(&lock);
	add(idle() - begin, &lock_waits_ns, &lock_waits_most, &lock_waits_drawn);
	pthread_mutex_unlock(&lock);
}

static void *locker(void *argument)
{
	for (int i = 0; i < 25; i++) {
		take_turn();
		lock_waits();
	}
	return argument;
}

WAITS(condition_waits, i < 25, {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += 15 * MILLISECOND;
	t.tv_sec += t.tv_nsec / 1000000000L;
	t.tv_nsec %= 1000000000L;
	pthread_mutex_lock(&guard);
	pthread_cond_timedwait(&condition, &guard, &t);
	pthread_mutex_unlock(&guard);
})

static void *feeder(void *argument)
{
	for (int i = 0; i < 25; i++) {
		nap(20 * MILLISECOND);
		if (write(pipes[1], "x", 1) != 1 || send(sockets[1], "x", 1, 0) != 1)
			abort();
	}
	return argument;
}

static void *owner(void *argument)
{
	for (int i = 0; i < 25; i++) {
		pthread_mutex_lock(&lock);
		__atomic_store_n(&turn, 1, __ATOMIC_RELEASE);
		nap(20 * MILLISECOND);
		pthread_mutex_unlock(&lock);
		while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != 0)
			nap(MILLISECOND / 4);
		nap(MILLISECOND);
	}
	return argument;
}

/* Nanoseconds that the thread could run in and did not (Documentation/scheduler/
 * sched-stats.rst). */
static long delayed(void)
{
	char path[64], text[128] = "";
	long ran = 0, delay = 0;
	snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", syscall(SYS_gettid));
	int fd = open(path, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
		abort();
	close(fd);
	sscanf(text, "%ld %ld", &ran, &delay);
	return delay;
}

static long crowded_ns, crowded_most;
static NOINLINE void crowded(long begin)
{
	long last = begin;
	for (long at = begin; at < begin + 1500 * MILLISECOND; last = at, at = now())
		if (at - last > crowded_most)
			crowded_most = at - last;
}

/* Many short waits: some 20,000 a second. If there are more than a thousand a second, one in 16
 * is recorded, and the function makes 60,000 waits. */
static long yields_ns, yielded;
static NOINLINE void yields(long begin)
{
	long n = 0, next = begin;
	for (; n < 60000; next = now()) {
		long passed = next - begin;
		if (passed > 1500 * MILLISECOND && n < passed / (MILLISECOND + MILLISECOND / 10))
			break;
		while (now() < next + 50000)
			;
		sched_yield();
		n = __atomic_add_fetch(&yielded, 1, __ATOMIC_RELAXED);
	}
}

static void compete(void (*work)(long), long begin, long *delay)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	sched_setaffinity(0, sizeof set, &set);
	long before = delayed();
	work(begin);
	__atomic_fetch_add(delay, delayed() - before, __ATOMIC_RELAXED);
}

static void *rival(void *argument)
{
	compete(crowded, *(long *)argument, &crowded_ns);
	return NULL;
}

static void *yielder(void *argument)
{
	compete(yields, *(long *)argument, &yields_ns);
	return NULL;
}

struct start {
	void *(*function)(void *);
	void *argument;
};

/* Opens the thread's clock first, which waits, too. */
static void *begin(void *argument)
{
	const struct start *start = argument;
	on_cpu();
	return start->function(start->argument);
}

static void run(void *(*const functions[])(void *), int n, void *argument)
{
	pthread_t threads[8];
	struct start starts[8];
	for (int i = 0; i < n; i++) {
		starts[i] = (struct start){functions[i], argument};
		pthread_create(&threads[i], NULL, begin, &starts[i]);
	}
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	if (argc < 2 || pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		return 2;
	file = open(argv[1], O_CREAT | O_RDWR, 0600);
	run((void *(*const[])(void *)){long_sleeps, poll_sleeps, short_sleeps, child_waits,
				       condition_waits, file_syncs}, 6, NULL);
	run((void *(*const[])(void *)){pipe_reads, socket_reads, feeder}, 3, NULL);
	run((void *(*const[])(void *)){poll_pipes, feeder}, 2, NULL);
	run((void *(*const[])(void *)){locker, owner}, 2, NULL);
	long begin = now();
	run((void *(*const[])(void *)){rival, rival, rival}, 3, &begin);
	begin = now();
	run((void *(*const[])(void *)){yielder, yielder, yielder}, 3, &begin);
#define SAY(name) printf(#name " %ld\n" #name "_most %ld\n", name##_ns, name##_most)
	SAY(long_sleeps), SAY(poll_sleeps), SAY(short_sleeps), SAY(child_waits);
	SAY(condition_waits), SAY(file_syncs), SAY(pipe_reads), SAY(socket_reads);
	SAY(poll_pipes), SAY(lock_waits), SAY(crowded);
	printf("short_sleeps_drawn %.0f\nyields %ld\n", short_sleeps_drawn, yields_ns);
	return 0;
}
