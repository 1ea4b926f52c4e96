/*
 * Waits until who records this process knows all that it has loaded. UNTIL_KNOWN is the shell
 * command that waits, without the process id at its end (states::until_known sets it).
 */
#ifndef KNOWN_H
#define KNOWN_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* 0: UNTIL_KNOWN is not set. */
static inline int wait_until_known(void)
{
	const char *wait = getenv("UNTIL_KNOWN");
	char command[4096];
	if (wait == NULL)
		return 0;
	snprintf(command, sizeof(command), "%s%d >/dev/null", wait, (int)getpid());
	if (system(command) != 0) {
		fprintf(stderr, "who records does not know process %d\n", (int)getpid());
		exit(1);
	}
	return 1;
}

#endif
