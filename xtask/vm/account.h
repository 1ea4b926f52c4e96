// What the VM's device programs share: the clock of aiprof's events, and an
// account of what a program did, one JSON object a line on standard output.
#ifndef ACCOUNT_H
#define ACCOUNT_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

// Nanoseconds of CLOCK_MONOTONIC.
static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_until(uint64_t ns)
{
	struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

// Prints what failed, and ends the program.
static inline void give_up(const char *what)
{
	printf("{\"event\":\"failed\",\"what\":\"%s\",\"error\":\"%s\"}\n", what, strerror(errno));
	exit(1);
}

// One ioctl with the times around it.
struct call {
	uint64_t before, after;
	int result, error;
};

static inline struct call timed_ioctl(int fd, unsigned long command, void *argument)
{
	struct call call;
	call.before = now_ns();
	call.result = ioctl(fd, command, argument);
	call.error = call.result < 0 ? errno : 0;
	call.after = now_ns();
	return call;
}

#endif
