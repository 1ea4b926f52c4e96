/*
 * A library with the functions of a probe table, for leave_main.cpp.
 * -DFUNCTIONS=FILE: a file with a line `FUNCTION_n(id, "symbol")` for each, n 0 to 2.
 * These are three shapes: the exit at a `ret`, at a jump into another function, and
 * after a frame whose size a variable keeps from being known at compile time.
 */
#include <cstdint>

#include <alloca.h>

static long (*does)();

extern "C" __attribute__((visibility("default"))) void leave_library_does(long (*told)())
{
	does = told;
}

#define PARAMETERS                                                                           \
	uintptr_t, uintptr_t b, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,       \
		uintptr_t
#define DECLARE(id, symbol)                                                                  \
	extern "C" __attribute__((visibility("default"))) long id(PARAMETERS) __asm__(symbol);

#define FUNCTION_0(id, symbol)                                                               \
	DECLARE(id, symbol)                                                                  \
	long id(PARAMETERS) { return does() + 1; }
#define FUNCTION_1(id, symbol)                                                               \
	DECLARE(id, symbol)                                                                  \
	long id(PARAMETERS) { return does(); }
#define FUNCTION_2(id, symbol)                                                               \
	DECLARE(id, symbol)                                                                  \
	long id(PARAMETERS)                                                                  \
	{                                                                                    \
		volatile char *room = static_cast<char *>(alloca(16 + (b & 63)));            \
		room[b & 15] = 1;                                                            \
		return does() + room[b & 15];                                                \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"
#include FUNCTIONS
