/* A library that pretends to be CPython: MINOR is the version that it claims.
 * Its state consists of pointers in circles, through memory with invalid values. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WORDS 512
/* `_PyRuntime`, in which every key is initialised and is the same one. */
uint64_t _PyRuntime[WORDS];
uint64_t PyCode_Type[64];
const uint32_t Py_Version = 0x030000f0 | MINOR << 16;
static uint64_t state[WORDS];

void *PyGILState_GetThisThreadState(void)
{
	return state;
}

static double cpu(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

__attribute__((noinline)) void *_PyEval_EvalFrameDefault(double seconds)
{
	double end = cpu() + seconds;
	while (cpu() < end)
		for (volatile int i = 0; i < 20000; i++)
			;
	return state;
}

int run(double seconds)
{
	pthread_key_t key = 0;
	for (int i = 0; i < 12; i++)
		pthread_key_create(&key, NULL);
	pthread_setspecific(key, state);
	for (int i = 0; i < WORDS; i++)
		_PyRuntime[i] = (uint64_t)key << 32 | 1;
#if MINOR >= 13
	/* _Py_DebugOffsets: a cookie, the version, and offsets up to far outside. */
	memcpy(_PyRuntime, "xdebugpy", 8);
	_PyRuntime[1] = Py_Version;
	_PyRuntime[2] = 0;
	for (int i = 3; i < 128; i++)
		_PyRuntime[i] = 8 * (i % 20);
#endif
	for (int i = 0; i < WORDS; i++)
		state[i] = (uint64_t)state;
	/* A code object by its type; the thread by its id, where versions have it. */
	state[1] = (uint64_t)PyCode_Type;
	state[152 / 8] = (uint64_t)pthread_self();
	state[176 / 8] = (uint64_t)pthread_self();
	return _PyEval_EvalFrameDefault(seconds) == state;
}
