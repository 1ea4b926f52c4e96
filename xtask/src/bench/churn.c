/*
 * Programs that come and go. `churn TEMPLATE DIRECTORY COUNT EACH_MS BUSY_MS` starts COUNT
 * processes, one each EACH_MS. Each is of a file that did not exist before (TEMPLATE with a
 * number behind it), and busy for BUSY_MS, alone or in a child of its own. Its file is
 * deleted while it runs, or after it. Prints how many processes there were.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long now_ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static int copy(const char *from, const char *to, long number)
{
	static char bytes[1 << 20];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0700);
	ssize_t n = in < 0 ? -1 : read(in, bytes, sizeof bytes);
	int failed = n <= 0 || out < 0 || write(out, bytes, (size_t)n) != n ||
		     write(out, &number, sizeof number) != sizeof number;
	close(in);
	close(out);
	return failed;
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	long count = atol(argv[3]), each = atol(argv[4]), begin = now_ms();
	for (long i = 0; i < count; i++) {
		char path[4096];
		snprintf(path, sizeof path, "%s/p%ld", argv[2], i);
		if (copy(argv[1], path, i))
			return 1;
		pid_t child = fork();
		if (!child) {
			execl(path, path, argv[5], i % 4 ? "alone" : "child", (char *)0);
			_exit(127);
		}
		if (i % 2)
			waitpid(child, 0, 0);
		else
			usleep(20000);
		unlink(path);
		waitpid(child, 0, 0);
		while (now_ms() - begin < (i + 1) * each)
			usleep(1000);
	}
	printf("%ld\n", count);
	return 0;
}
