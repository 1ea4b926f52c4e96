/*
 * What an ordinary user can do beside a profiler, one thing at a time:
 *
 *   outsider map COUNT FILE     COUNT processes map FILE as code, and sleep.
 *   outsider lists COUNT MAPS   COUNT processes map this program MAPS times each.
 *   outsider pin DIR COUNT MIB  COUNT programs of MIB MiB in DIR, mapped by one
 *                               process each and deleted; all end.
 *   outsider files DIR COUNT    maps COUNT files, one after the other, each deleted
 *                               at once, with the longest path that there is.
 *   outsider work MS            MS milliseconds of CPU time, then sleeps.
 *   outsider reuse PID          starts processes until one has this number, which
 *                               writes a perf map that names every address.
 *   outsider spy PID...         tries to look into processes; prints what worked.
 *
 * It prints "ready" when that is done; children end with their parent.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "outsider: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

static void map_code(int fd, char *at)
{
	int flags = MAP_PRIVATE | (at ? MAP_FIXED : 0);
	need(mmap(at, PAGE, PROT_READ | PROT_EXEC, flags, fd, 0) != MAP_FAILED, "mmap");
}

/* Maps a file `times`, every other page so that the kernel cannot merge them. */
static void map_often(const char *path, long times)
{
	int fd = open(path, O_RDONLY);
	need(fd >= 0, path);
	char *room = mmap(NULL, (size_t)times * 2 * PAGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	need(room != MAP_FAILED, "mmap");
	for (long i = 0; i < times; i++)
		map_code(fd, room + i * 2 * PAGE);
	close(fd);
}

/* Has `count` children map a file, one after the other, and sleep. */
static void map_in_children(long count, const char *path, long times)
{
	for (long i = 0; i < count; i++) {
		int done[2];
		char byte;
		need(!pipe(done), "pipe");
		pid_t child = fork();
		need(child >= 0, "fork");
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			map_often(path, times);
			need(write(done[1], "x", 1) == 1, "write");
			for (;;)
				pause();
		}
		need(read(done[0], &byte, 1) == 1, "read");
		close(done[0]);
		close(done[1]);
	}
}

/* A new file in `dir` that begins as this program does, with `mib` MiB behind. */
static int new_program(const char *dir, long mib)
{
	static char begin[PAGE * 4], rest[1 << 20];
	char path[256];
	int self = open("/proc/self/exe", O_RDONLY);
	ssize_t n = read(self, begin, sizeof begin);
	need(n > 0, "reading this program");
	close(self);
	snprintf(path, sizeof path, "%s/pin-%d", dir, (int)getpid());
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0700);
	need(fd >= 0 && write(fd, begin, (size_t)n) == n, path);
	memset(rest, 7, sizeof rest);
	for (long i = 0; i < mib; i++)
		need(write(fd, rest, sizeof rest) == sizeof rest, path);
	need(!unlink(path), path);
	return fd;
}

static void pin(const char *dir, long count, long mib)
{
	for (long i = 0; i < count; i++) {
		pid_t child = fork();
		need(child >= 0, "fork");
		if (!child) {
			map_code(new_program(dir, mib), NULL);
			/* As long as a short program takes. */
			usleep(50000);
			_exit(0);
		}
		need(waitpid(child, NULL, 0) == child, "waitpid");
	}
}

static void many_files(const char *dir, long count)
{
	char name[251];
	memset(name, 'd', sizeof name - 1);
	name[sizeof name - 1] = 0;
	need(!chdir(dir), dir);
	for (int i = 0; i < 15; i++)
		need((!mkdir(name, 0755) || errno == EEXIST) && !chdir(name), "mkdir");
	for (long i = 0; i < count; i++) {
		int fd = open("f", O_RDWR | O_CREAT | O_EXCL, 0700);
		need(fd >= 0 && !unlink("f"), "f");
		void *at = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
		need(at != MAP_FAILED && !munmap(at, PAGE), "mmap");
		close(fd);
	}
}

static void work(double seconds)
{
	volatile unsigned long sink = 0;
	while ((double)clock() / CLOCKS_PER_SEC < seconds)
		for (int i = 0; i < 10000; i++)
			sink += (unsigned long)i;
}

/* Gets a process id that was another process's, by starting processes until it comes
 * round again. */
static void reuse(const char *program, const char *number)
{
	pid_t wanted = (pid_t)atoi(number);
	for (;;) {
		pid_t child = vfork();
		need(child >= 0, "vfork");
		if (!child) {
			if (getpid() == wanted)
				execl(program, program, "plant", number, NULL);
			_exit(0);
		}
		/* That child prints when it is ready, and stays. */
		need(waitpid(child, NULL, 0) == child, "waitpid");
		if (child == wanted)
			exit(1);
	}
}

static void plant(const char *number)
{
	char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%s.map", number);
	FILE *map = fopen(path, "w");
	need(map && fputs("1000 7fffffff0000 planted_name\n", map) >= 0 && !fclose(map), path);
}

/* What of a process can be got at. Fails where anything can. */
static int spy(const char *text)
{
	static const char *const files[] = { "mem", "environ", "maps", "fd", "map_files",
					     "stack", "auxv" };
	pid_t pid = (pid_t)atoi(text);
	int bad = 0;
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		char path[64], byte;
		snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, files[i]);
		int fd = open(path, O_RDONLY);
		/* Everybody may open some of them, but not read them. */
		if (fd >= 0 && (read(fd, &byte, 1) >= 0 || (errno != EACCES && errno != EPERM))) {
			printf("opened %s\n", path);
			bad = 1;
		}
		if (fd >= 0)
			close(fd);
	}
	if (!ptrace(PTRACE_SEIZE, pid, NULL, NULL)) {
		printf("traced %d\n", (int)pid);
		bad = 1;
	}
	long handle = syscall(SYS_pidfd_open, pid, 0);
	for (int fd = 0; handle >= 0 && fd < 300; fd++) {
		if (syscall(SYS_pidfd_getfd, handle, fd, 0) >= 0) {
			printf("took descriptor %d of %d\n", fd, (int)pid);
			bad = 1;
		}
	}
	char byte;
	struct iovec own = { &byte, 1 }, theirs = { (void *)spy, 1 };
	if (process_vm_readv(pid, &own, 1, &theirs, 1, 0) > 0 || errno == EFAULT) {
		printf("read memory of %d\n", (int)pid);
		bad = 1;
	}
	return bad;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	if (!strcmp(what, "map") && argc > 3) {
		map_in_children(atol(argv[2]), argv[3], 1);
	} else if (!strcmp(what, "lists") && argc > 3) {
		map_in_children(atol(argv[2]), argv[0], atol(argv[3]));
	} else if (!strcmp(what, "pin") && argc > 4) {
		pin(argv[2], atol(argv[3]), atol(argv[4]));
		ready();
		return 0;
	} else if (!strcmp(what, "files") && argc > 3) {
		many_files(argv[2], atol(argv[3]));
	} else if (!strcmp(what, "work")) {
		work(atof(argv[2]) / 1000);
	} else if (!strcmp(what, "reuse")) {
		reuse(argv[0], argv[2]);
	} else if (!strcmp(what, "plant")) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		plant(argv[2]);
	} else if (!strcmp(what, "spy")) {
		int bad = 0;
		for (int i = 2; i < argc; i++)
			bad |= spy(argv[i]);
		return bad;
	} else {
		fprintf(stderr, "usage: outsider map|lists|pin|files|work|reuse|spy ...\n");
		return 2;
	}
	ready();
	for (;;)
		pause();
}
