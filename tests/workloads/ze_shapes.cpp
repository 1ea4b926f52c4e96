/*
 * A Level Zero program whose calls come from all sorts of places: `ze_shapes
 * SHAPE[,SHAPE..] module=FILE [launches=N]`. It prints what it launched as one line of
 * JSON; every call must succeed.
 *
 *   value      kernels are made in a helper that gives the handle as its value.
 *   many       as many kernels as launches, made at once, each launched once.
 *   site       one place in a loop, of a function that is entered anew.
 *   frames     each call from deeper down, across memory that is not written.
 *   objects    lambdas, function objects, virtual functions, destructors.
 *   callbacks  from qsort, std::sort, atexit-like lists and signal handlers' stacks.
 *   threads    short threads, each from another depth.
 *   jumps      longjmp and exceptions over frames between calls.
 *   fibers     several contexts with stacks of their own take turns.
 */
#include "ze.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>

#include <ucontext.h>

static Account account;
static ze_command_list_handle_t list;
static Program *program;
static volatile char sink;

static NOINLINE void launch(ze_kernel_handle_t kernel, const std::string &name)
{
	ze_group_count_t count = {4, 2, 1};
	MUST(CommandList, AppendLaunchKernel, list, kernel, &count, nullptr, 0, nullptr);
	account.add(name, 1);
}

static void launch(long i)
{
	size_t k = static_cast<size_t>(i) % program->kernels.size();
	launch(program->kernels[k], program->names[k]);
}

/* The handle is only in a register when the helper returns. */
static NOINLINE ze_kernel_handle_t make(const std::string &name)
{
	ze_kernel_desc_t desc = {ZE_STRUCTURE_TYPE_KERNEL_DESC, nullptr, 0, name.c_str()};
	ze_kernel_handle_t out;
	MUST(Kernel, Create, program->module, &desc, &out);
	return out;
}

static ze_kernel_handle_t ready(ze_kernel_handle_t kernel)
{
	MUST(Kernel, SetGroupSize, kernel, 16, 1, 1);
	int n = 64;
	void *buffer = program->buffer;
	MUST(Kernel, SetArgumentValue, kernel, 0, sizeof(buffer), &buffer);
	MUST(Kernel, SetArgumentValue, kernel, 1, sizeof(buffer), &buffer);
	MUST(Kernel, SetArgumentValue, kernel, 2, sizeof(n), &n);
	return kernel;
}

static const std::string &name_of(long i)
{
	return program->names[static_cast<size_t>(i) % program->names.size()];
}

static void value(long launches)
{
	for (long i = 0; i < launches; i++) {
		auto kernel = make(name_of(i));
		launch(ready(kernel), name_of(i));
	}
}

static void many(long launches)
{
	std::vector<ze_kernel_handle_t> made;
	for (long i = 0; i < launches; i++)
		made.push_back(make(name_of(i)));
	for (long i = 0; i < launches; i++)
		launch(ready(made[static_cast<size_t>(i)]), name_of(i));
}

static NOINLINE void once(long i)
{
	launch(i);
	sink = static_cast<char>(i);
}

static void site(long launches)
{
	for (long i = 0; i < launches; i++)
		once(i);
}

/* Below `room` lies what calls left that were made from deeper down before. */
static NOINLINE void across(long i, size_t bytes)
{
	auto *room = static_cast<volatile char *>(__builtin_alloca(bytes));
	room[0] = 1;
	launch(i);
	sink = room[0];
}

static void frames(long launches)
{
	for (long i = 0; i < launches; i++)
		across(i, 64 + static_cast<size_t>(i % 40) * 480);
	for (long i = 0; i < launches; i++)
		across(i, 64 + static_cast<size_t>(39 - i % 40) * 480);
}

struct Base {
	virtual ~Base() {}
	virtual void go(long i) = 0;
};
struct Direct : Base {
	void go(long i) override { launch(i); }
};
struct Wrapped : Base {
	std::function<void(long)> inner;
	explicit Wrapped(std::function<void(long)> f) : inner(std::move(f)) {}
	void go(long i) override { inner(i + 1); }
};
struct AtEnd {
	long i;
	~AtEnd() { launch(i); }
};

static void objects(long launches)
{
	auto lambda = [](long i) { launch(i); };
	std::unique_ptr<Base> direct(new Direct), wrapped(new Wrapped(lambda));
	for (long i = 0; i < launches; i++) {
		switch (i % 5) {
		case 0: lambda(i); break;
		case 1: std::bind(lambda, i)(); break;
		case 2: direct->go(i); break;
		case 3: wrapped->go(i); break;
		default: AtEnd end{i}; sink = static_cast<char>(end.i);
		}
	}
}

static long calls;

static int compare(const void *a, const void *b)
{
	if (calls > 0 && calls-- > 0)
		launch(*static_cast<const int *>(a));
	return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

static void on_signal(int)
{
	launch(7);
}

static void callbacks(long launches)
{
	std::vector<int> numbers;
	for (int i = 0; i < 64; i++)
		numbers.push_back(i * 37 % 64);
	for (calls = launches / 2; calls > 0;) {
		auto some = numbers;
		qsort(some.data(), some.size(), sizeof(int), compare);
	}
	for (long left = launches / 4; left > 0;) {
		auto some = numbers;
		std::sort(some.begin(), some.end(), [&](int a, int b) {
			if (left > 0 && left-- > 0)
				launch(a);
			return a < b;
		});
	}
	/* A handler on a stack of its own; the program is in no call then. */
	static char stack[256 << 10];
	stack_t alternative = {};
	alternative.ss_sp = stack;
	alternative.ss_size = sizeof(stack);
	struct sigaction action = {};
	action.sa_handler = on_signal;
	action.sa_flags = SA_ONSTACK;
	if (sigaltstack(&alternative, nullptr) != 0 || sigaction(SIGUSR1, &action, nullptr) != 0)
		die("sigaction", 0);
	for (long i = 0; i < launches / 4; i++) {
		if (i % 2 == 0)
			launch(i);
		raise(SIGUSR1);
	}
}

static NOINLINE void deeper(long depth, long i)
{
	volatile char room[160];
	room[0] = static_cast<char>(depth);
	if (depth > 0)
		deeper(depth - 1, i);
	else
		launch(i);
	sink = room[0];
}

static void threads(long launches)
{
	/* One at a time: a list belongs to one thread. */
	for (long i = 0; i < launches; i += 10)
		std::thread([=] {
			for (long k = i; k < std::min(i + 10, launches); k++)
				deeper(k % 17, k);
		}).join();
}

static jmp_buf back;

static NOINLINE void throws(long depth, long i)
{
	deeper(depth, i);
	throw std::runtime_error("over");
}

static NOINLINE void leaps(long depth, long i)
{
	deeper(depth, i);
	longjmp(back, 1);
}

static void jumps(long launches)
{
	static volatile long i;
	for (i = 0; i < launches; i = i + 1) {
		if (i % 2 == 0) {
			try {
				throws(i % 13, i);
			} catch (const std::runtime_error &) {
				launch(i);
			}
		} else if (setjmp(back) == 0) {
			leaps(i % 11, i);
		} else {
			launch(i);
		}
	}
}

static const size_t FIBERS = 4;
static ucontext_t scheduler, fibers[FIBERS];
static long quota;

static void fiber(int number)
{
	for (long i = 0; i < quota; i++) {
		deeper(number * 3 + i % 5, i);
		swapcontext(&fibers[number], &scheduler);
	}
}

static void take_turns(long launches)
{
	static std::vector<std::vector<char>> stacks(FIBERS, std::vector<char>(256 << 10));
	quota = launches / static_cast<long>(FIBERS);
	for (size_t i = 0; i < FIBERS; i++) {
		getcontext(&fibers[i]);
		fibers[i].uc_stack.ss_sp = stacks[i].data();
		fibers[i].uc_stack.ss_size = stacks[i].size();
		fibers[i].uc_link = &scheduler;
		makecontext(&fibers[i], reinterpret_cast<void (*)()>(fiber), 1, static_cast<int>(i));
	}
	for (long turn = 0; turn < quota; turn++)
		for (auto &one : fibers)
			swapcontext(&scheduler, &one);
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(long);
	} shapes[] = {
		{"value", value},         {"many", many},       {"site", site},
		{"frames", frames},       {"objects", objects}, {"callbacks", callbacks},
		{"threads", threads},     {"jumps", jumps},     {"fibers", take_turns},
	};
	Options options(argc, argv);
	Program own(options);
	program = &own;
	list = own.immediate(0, true);
	for_each_shape(argc > 1 ? argv[1] : "", [&](const std::string &name) {
		for (auto &shape : shapes)
			if (name == shape.name)
				return shape.run(options.number("launches", 200)), true;
		return false;
	});
	MUST(CommandList, Destroy, list);
	account.print(argv[1]);
	return 0;
}
