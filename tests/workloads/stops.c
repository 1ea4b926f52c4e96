/*
 * A child that spins or sleeps in functions named after how its parent stops it there: by a
 * signal, as a debugger, by freezing its cgroup. Prints for each the least and the most nanoseconds
 * that the child was stopped, by the parent's clock. The least begins when the parent saw it stopped
 * and ends before it lets it go on. The most begins before and ends behind these.
 *
 * stops [DIRECTORY]: a cgroup for the child, of version 1 with the freezer, or of version 2.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile struct {
	int is_in;
	int is_over;
} *shared;
static const char *cgroup;
static int is_v1;

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void nap(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	nanosleep(&t, NULL);
}

static void must(int is_done, const char *what)
{
	if (!is_done) {
		perror(what);
		exit(1);
	}
}

#define SPINS(name)                                                                                \
	static NOINLINE void name(void)                                                            \
	{                                                                                          \
		shared->is_in = 1;                                                                 \
		while (!shared->is_over)                                                           \
			;                                                                          \
	}
/* Longer than it is stopped: the rest of the sleep is a call of its own. */
#define SLEEPS(name)                                                                               \
	static NOINLINE void name(void)                                                            \
	{                                                                                          \
		shared->is_in = 1;                                                                 \
		nap(1000);                                                                         \
		while (!shared->is_over)                                                           \
			nap(1);                                                                    \
	}

SPINS(spins_signalled)
SLEEPS(sleeps_signalled)
SPINS(spins_traced)
SLEEPS(sleeps_traced)
SPINS(spins_frozen)
SLEEPS(sleeps_frozen)

static void put(const char *file, const char *text)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", cgroup, file);
	int fd = open(path, O_WRONLY);
	must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

static int says(const char *file, const char *text)
{
	char path[4096], content[256] = "";
	snprintf(path, sizeof path, "%s/%s", cgroup, file);
	int fd = open(path, O_RDONLY);
	must(fd >= 0 && read(fd, content, sizeof content - 1) >= 0, path);
	close(fd);
	return strstr(content, text) != NULL;
}

enum how { SIGNALLED, TRACED, FROZEN };

static void stop(enum how how, pid_t pid)
{
	int status;
	switch (how) {
	case SIGNALLED:
		must(!kill(pid, SIGSTOP), "kill");
		must(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "waitpid");
		break;
	case TRACED:
		must(!ptrace(PTRACE_SEIZE, pid, 0, 0) && !ptrace(PTRACE_INTERRUPT, pid, 0, 0),
		     "ptrace");
		must(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status), "waitpid");
		break;
	case FROZEN:
		put(is_v1 ? "freezer.state" : "cgroup.freeze", is_v1 ? "FROZEN" : "1");
		while (!says(is_v1 ? "freezer.state" : "cgroup.events",
			     is_v1 ? "FROZEN" : "frozen 1"))
			nap(1);
	}
}

static void let_go(enum how how, pid_t pid)
{
	switch (how) {
	case SIGNALLED:
		must(!kill(pid, SIGCONT), "kill");
		break;
	case TRACED:
		must(!ptrace(PTRACE_DETACH, pid, 0, 0), "ptrace");
		break;
	case FROZEN:
		put(is_v1 ? "freezer.state" : "cgroup.freeze", is_v1 ? "THAWED" : "0");
	}
}

static void phase(const char *name, void (*function)(void), enum how how)
{
	shared->is_in = shared->is_over = 0;
	pid_t pid = fork();
	must(pid >= 0, "fork");
	if (pid == 0) {
		if (how == FROZEN)
			put("cgroup.procs", "0");
		function();
		_exit(0);
	}
	while (!shared->is_in)
		nap(1);
	nap(200);
	long before = now();
	stop(how, pid);
	long from = now();
	nap(500);
	long to = now();
	let_go(how, pid);
	long after = now();
	nap(100);
	shared->is_over = 1;
	must(waitpid(pid, NULL, 0) == pid, "waitpid");
	printf("%s %ld\n%s_most %ld\n", name, to - from, name, after - before);
}

int main(int argc, char **argv)
{
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shared != MAP_FAILED, "mmap");
	phase("spins_signalled", spins_signalled, SIGNALLED);
	phase("sleeps_signalled", sleeps_signalled, SIGNALLED);
	phase("spins_traced", spins_traced, TRACED);
	phase("sleeps_traced", sleeps_traced, TRACED);
	if (argc > 1) {
		char path[4096];
		cgroup = argv[1];
		snprintf(path, sizeof path, "%s/freezer.state", cgroup);
		is_v1 = !access(path, F_OK);
		phase("spins_frozen", spins_frozen, FROZEN);
		phase("sleeps_frozen", sleeps_frozen, FROZEN);
	}
	return 0;
}
