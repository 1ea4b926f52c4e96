/*
 * Leaves every API function in an unusual way, from a hook that the runtime
 * calls inside it: what a program may do in its callbacks, and what return
 * probes break. backtrace() must see the caller of the API function.
 */
#include "aiu_work.h"

#include <execinfo.h>
#include <pthread.h>
#include <csetjmp>
#include <stdexcept>
#include <thread>

static jmp_buf landing;
static unsigned long left, seen_caller;
/* Calls of the hook until it acts: each function gets its turn. */
static unsigned long countdown;
static void *caller_low, *caller_high;

static bool its_turn() { return countdown && --countdown == 0; }

static void hook_throw(const char *function)
{
	if (its_turn())
		throw std::runtime_error(function);
}

static void hook_longjmp(const char *)
{
	if (its_turn()) {
		vaiu_abandon_calls();
		longjmp(landing, 1);
	}
}

static void hook_cancel(const char *)
{
	if (its_turn()) {
		pthread_cancel(pthread_self());
		pthread_testcancel();
	}
}

static void hook_backtrace(const char *)
{
	void *frames[64];
	int n = backtrace(frames, 64);
	for (int i = 0; i < n; i++)
		if (frames[i] > caller_low && frames[i] < caller_high) {
			seen_caller++;
			return;
		}
}

NOINLINE static bool try_throw(Stream &stream)
{
	try {
		every_function(stream);
	} catch (const std::runtime_error &) {
		left++;
		return true;
	}
	return false;
}

NOINLINE static bool try_longjmp(Stream &stream)
{
	if (setjmp(landing) == 0) {
		every_function(stream);
		return false;
	}
	left++;
	return true;
}

NOINLINE static bool try_cancel(Stream &stream)
{
	void *how = nullptr;
	pthread_t thread;
	auto body = [](void *argument) -> void * {
		every_function(*static_cast<Stream *>(argument));
		return nullptr;
	};
	if (pthread_create(&thread, nullptr, body, &stream) != 0)
		return false;
	pthread_join(thread, &how);
	left += how == PTHREAD_CANCELED;
	return how == PTHREAD_CANCELED;
}

static unsigned long backtraces(const Options &options, Stream &stream)
{
	caller_low = reinterpret_cast<void *>(&every_function);
	/* The function is far shorter than this. */
	caller_high = static_cast<char *>(caller_low) + 8192;
	vaiu_set_hook(hook_backtrace);
	for (unsigned long i = 0; i < options.launches; i++)
		every_function(stream);
	vaiu_set_hook(nullptr);
	return seen_caller;
}

/* How often a function was left, or its caller was seen. */
unsigned long leave_every_function(const Options &options, Stream &stream)
{
	bool (*attempt)(Stream &);
	if (options.mode == "backtrace")
		return backtraces(options, stream);
	if (options.mode == "throw") {
		attempt = try_throw;
		vaiu_set_hook(hook_throw);
	} else if (options.mode == "longjmp") {
		attempt = try_longjmp;
		vaiu_set_hook(hook_longjmp);
	} else if (options.mode == "cancel") {
		attempt = try_cancel;
		vaiu_set_hook(hook_cancel);
	} else {
		fprintf(stderr, "no mode %s\n", options.mode.c_str());
		exit(2);
	}
	/* Leave the first call, then the second, until none is left to leave. */
	for (unsigned long i = 0; i < options.launches; i++)
		for (unsigned long turn = 1;; turn++) {
			countdown = turn;
			if (!attempt(stream))
				break;
		}
	vaiu_set_hook(nullptr);
	return left;
}
