/*
 * Calls functions of libraries and leaves each in every way there is:
 * `leave_main LIST`, where each line of LIST is `LIBRARY SYMBOL`. The libraries
 * (made of leave_library.cpp) do in each function what this program requests:
 * return, throw, longjmp, compare backtrace() with the caller's, end the thread
 * by pthread_cancel. The arguments are what no profiler may stumble over.
 * Prints what came of each call: the same with a profiler as without. It prints
 * its pid on stderr.
 */
#include "known.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include <csetjmp>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

typedef long Function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
		      uintptr_t, uintptr_t);
typedef void Tell(long (*)());

struct Leave {
	int code;
};

constexpr int MAX_FRAMES = 64;
static const char *const WAYS[] = {"return", "throw", "longjmp", "backtrace", "cancel"};

/* The call being made; one at a time, whatever its thread. */
static int way;
static jmp_buf back;
static void *caller_frames[MAX_FRAMES];
static int caller_depth;
static bool reached, same_stack;
static uintptr_t forbidden, writable;

/* What the function does, called by it. */
static long inside()
{
	reached = true;
	switch (way) {
	case 1:
		throw Leave{7};
	case 2:
		longjmp(back, 1);
	case 3: {
		void *frames[MAX_FRAMES];
		int depth = backtrace(frames, MAX_FRAMES);
		/* The caller's own frame has another return address now. */
		int same = caller_depth - 1;
		same_stack = depth > caller_depth && same > 0;
		for (int i = 1; same_stack && i <= same; i++)
			same_stack = frames[depth - i] == caller_frames[caller_depth - i];
		break;
	}
	case 4:
		pthread_cancel(pthread_self());
		pthread_testcancel();
	}
	return 35;
}

struct Guard {
	int &count;
	~Guard() { count++; }
};

/* Null, wild, unreadable, the end of the address space, a small number, zeros. */
static long call(Function *function, int turn)
{
	uintptr_t values[] = {0, ~uintptr_t(0), forbidden, uintptr_t(1) << 46, 3, writable,
			      0x8000000000000000, forbidden + 4096 - 4};
	auto value = [&](int i) { return values[(i + turn) & 7]; };
	return function(value(0), value(1), value(2), value(3), value(4), value(5), value(6),
			value(7));
}

struct Visit {
	Function *function;
	int turn;
	int cleaned = 0;
	long result = -1;
	int caught = 0;
};

__attribute__((noinline)) static void visit_once(Visit &visit)
{
	if (way == 2) {
		if (setjmp(back) == 0)
			visit.result = call(visit.function, visit.turn);
		return;
	}
	Guard guard{visit.cleaned};
	caller_depth = backtrace(caller_frames, MAX_FRAMES);
	try {
		visit.result = call(visit.function, visit.turn);
	} catch (const Leave &leave) {
		visit.caught = leave.code;
	}
}

static void *visit_thread(void *argument)
{
	visit_once(*static_cast<Visit *>(argument));
	return nullptr;
}

int main(int argc, char **argv)
{
	fprintf(stderr, "leave_main %d\n", int(getpid()));
	std::map<std::string, void *> libraries;
	std::ifstream list(argc > 1 ? argv[1] : "");
	std::string library, symbol;
	struct Line {
		std::string library, symbol;
	};
	std::map<int, Line> lines;
	while (list >> library >> symbol) {
		lines[int(lines.size())] = {library, symbol};
		if (libraries.count(library))
			continue;
		void *opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
		if (!opened)
			return puts(dlerror()), 1;
		libraries[library] = opened;
		auto tell = reinterpret_cast<Tell *>(dlsym(opened, "leave_library_does"));
		if (!tell)
			return puts(dlerror()), 1;
		tell(inside);
	}
	void *pages = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || mprotect(pages, 4096, PROT_READ | PROT_WRITE))
		return perror("mmap"), 1;
	writable = uintptr_t(pages);
	forbidden = writable + 4096;
	wait_until_known();
	for (auto &[number, line] : lines) {
		void *found = dlsym(libraries[line.library], line.symbol.c_str());
		if (!found)
			return puts(dlerror()), 1;
		for (way = 0; way < 5; way++) {
			Visit visit{reinterpret_cast<Function *>(found), number + way};
			reached = same_stack = false;
			void *status = nullptr;
			if (way == 4) {
				pthread_t thread;
				if (pthread_create(&thread, nullptr, visit_thread, &visit))
					return perror("pthread_create"), 1;
				pthread_join(thread, &status);
			} else {
				visit_once(visit);
			}
			printf("%s %s %s: %d %d %d %ld %d %d\n", line.library.c_str(),
			       line.symbol.c_str(), WAYS[way], reached, visit.cleaned,
			       visit.caught, visit.result, same_stack,
			       status == PTHREAD_CANCELED);
		}
	}
	/* Checks that nothing was written through the arguments. */
	for (int i = 0; i < 4096; i++)
		if (reinterpret_cast<char *>(pages)[i])
			return puts("written to"), 1;
	printf("calls %d\n", int(lines.size()) * 5);
	return 0;
}
