/*
 * A Level Zero program whose calls are made in ways that are rare: `ze_odd
 * SHAPE[,SHAPE..] module=FILE [launches=N] [part=LIBRARY]`. It prints what it launched as
 * one line of JSON, each of its processes a line; every call must succeed.
 *
 *   part       kernels are made and launched by a library, by value and by jumps.
 *   plugin     that library is opened late, closed and opened again, and launches when closed.
 *   signals    a handler on a stack of its own, at any time but in a call, from a timer.
 *   leaps      longjmp out of the callbacks of qsort and bsearch, from any depth.
 *   coroutines C++20's, which are resumed by others in turn.
 *   arena      many fibers whose stacks lie next to each other, in random order.
 *   pool       kernels of the main thread, launched by a pool of threads.
 *   makers     kernels made by short threads, launched by another after they ended.
 *   contexts   two contexts with modules and kernels of equal names.
 *   recorded   lists that are recorded once, and executed over and over again.
 *   kinds      cooperative, indirect and multiple launches.
 *   closing    destructors of statics, of threads' variables and atexit.
 *   children   forked and vforked processes of their own.
 *   renewed    kernels destroyed and made again, so that handles come back.
 */
#include "ze.h"

#include <algorithm>
#include <condition_variable>
#include <coroutine>
#include <csetjmp>
#include <csignal>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

static Account account;
static Program *program;
static const Options *options;
static ze_command_list_handle_t list;
static volatile long sink;
static const ze_group_count_t COUNT = {4, 2, 1};

static size_t at(long i)
{
	return static_cast<size_t>(i) % program->kernels.size();
}

static NOINLINE void launch(ze_command_list_handle_t on, ze_kernel_handle_t kernel,
			    const std::string &name)
{
	MUST(CommandList, AppendLaunchKernel, on, kernel, &COUNT, nullptr, 0, nullptr);
	account.add(name, 1);
}

static void launch(long i)
{
	launch(list, program->kernels[at(i)], program->names[at(i)]);
}

static ze_kernel_handle_t ready(ze_kernel_handle_t kernel)
{
	MUST(Kernel, SetGroupSize, kernel, 16, 1, 1);
	int n = 64;
	MUST(Kernel, SetArgumentValue, kernel, 0, sizeof(void *), &program->buffer);
	MUST(Kernel, SetArgumentValue, kernel, 1, sizeof(void *), &program->buffer);
	MUST(Kernel, SetArgumentValue, kernel, 2, sizeof(n), &n);
	return kernel;
}

static NOINLINE void deeper(long depth, long i)
{
	volatile char room[208];
	room[0] = static_cast<char>(depth);
	if (depth > 0)
		deeper(depth - 1, i);
	else
		launch(i);
	sink = room[0];
}

/* The library's functions. */
struct Part {
	void *library;
	ze_kernel_handle_t (*make)(ze_module_handle_t, const char *);
	ze_result_t (*launch)(ze_command_list_handle_t, ze_kernel_handle_t, const ze_group_count_t *,
			      ze_event_handle_t, uint32_t, ze_event_handle_t *);
	void (*at_end)(ze_command_list_handle_t, ze_kernel_handle_t);

	Part() : library(dlopen(options->text("part").c_str(), RTLD_NOW))
	{
		if (library == nullptr)
			die(dlerror(), 0);
		*reinterpret_cast<void **>(&make) = dlsym(library, "part_make");
		*reinterpret_cast<void **>(&launch) = dlsym(library, "part_launch");
		*reinterpret_cast<void **>(&at_end) = dlsym(library, "part_at_end");
	}
	void go(long i)
	{
		auto &name = program->names[at(i)];
		auto kernel = make(program->module, name.c_str());
		if (kernel == nullptr)
			die("part_make", 0);
		check(launch(list, ready(kernel), &COUNT, nullptr, 0, nullptr), "part_launch");
		account.add(name, 1);
	}
};

static void part(long launches)
{
	Part part;
	for (long i = 0; i < launches; i++)
		part.go(i);
	dlclose(part.library);
}

static void plugin(long launches)
{
	for (int round = 0; round < 4; round++) {
		usleep(20000);
		Part part;
		for (long i = 0; i < launches / 4; i++)
			part.go(i);
		part.at_end(list, program->kernels[0]);
		account.add(program->names[0], 1);
		dlclose(part.library);
	}
}

static volatile sig_atomic_t busy, ticks;

static void on_tick(int)
{
	/* The driver is not made for calls inside of its own. */
	if (busy)
		return;
	long tick = ticks;
	busy = 1;
	deeper(tick % 7, tick);
	busy = 0;
	ticks = tick + 1;
}

static void signals(long launches)
{
	static char stack[512 << 10];
	stack_t alternative = {};
	alternative.ss_sp = stack;
	alternative.ss_size = sizeof(stack);
	struct sigaction action = {};
	action.sa_handler = on_tick;
	action.sa_flags = SA_ONSTACK | SA_RESTART;
	if (sigaltstack(&alternative, nullptr) != 0 || sigaction(SIGALRM, &action, nullptr) != 0)
		die("sigaction", 0);
	itimerval every = {{0, 1000}, {0, 1000}};
	setitimer(ITIMER_REAL, &every, nullptr);
	for (long i = 0; ticks < launches / 2; i++) {
		if (i < launches / 2) {
			busy = 1;
			deeper(i % 5, i);
			busy = 0;
		}
		for (long k = 0; k < 200000; k++)
			sink = k;
	}
	every = {};
	setitimer(ITIMER_REAL, &every, nullptr);
}

static jmp_buf back;
static long left;

static int leap(const void *a, const void *b)
{
	long i = *static_cast<const int *>(a);
	deeper(i % 9, i);
	if (--left % 3 == 0)
		longjmp(back, 1);
	return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

static void leaps(long launches)
{
	static int numbers[64], key;
	for (int i = 0; i < 64; i++)
		numbers[i] = i * 37 % 64;
	left = launches;
	/* A variable of this function would be lost by the jump. */
	static long round;
	for (round = 0; left > 0; round++) {
		if (setjmp(back) != 0)
			continue;
		key = static_cast<int>(round % 64);
		if (round % 2 == 0)
			qsort(numbers, 64, sizeof(int), leap);
		else
			sink = bsearch(&key, numbers, 64, sizeof(int), leap) != nullptr;
	}
}

struct Task {
	struct promise_type {
		Task get_return_object()
		{
			return {std::coroutine_handle<promise_type>::from_promise(*this)};
		}
		std::suspend_always initial_suspend() { return {}; }
		std::suspend_always final_suspend() noexcept { return {}; }
		void return_void() {}
		void unhandled_exception() { std::terminate(); }
	};
	std::coroutine_handle<promise_type> handle;
};

static Task task(long first, long launches)
{
	for (long i = 0; i < launches; i++) {
		launch(first + i);
		co_await std::suspend_always{};
		deeper((first + i) % 6, i);
		co_await std::suspend_always{};
	}
}

static NOINLINE void resume(Task &task, long depth)
{
	volatile char room[96];
	room[0] = 1;
	if (depth > 0)
		resume(task, depth - 1);
	else
		task.handle.resume();
	sink = room[0];
}

static void coroutines(long launches)
{
	std::vector<Task> tasks;
	for (long i = 0; i < 5; i++)
		tasks.push_back(task(i, launches / 10));
	for (long turn = 0; turn < launches / 5; turn++)
		for (auto &one : tasks)
			resume(one, turn % 4);
	for (auto &one : tasks)
		one.handle.destroy();
}

static const size_t FIBERS = 24, FIBER_STACK = 64 << 10;
static ucontext_t scheduler, fibers[FIBERS];
static bool ended[FIBERS];

static void fiber(int number)
{
	for (long i = 0; i < options->number("launches", 200) / static_cast<long>(FIBERS); i++) {
		deeper((number * 7 + i * 3) % 11, i);
		swapcontext(&fibers[number], &scheduler);
	}
	ended[number] = true;
}

static void arena(long)
{
	static std::vector<char> stacks(FIBERS * FIBER_STACK);
	for (size_t i = 0; i < FIBERS; i++) {
		getcontext(&fibers[i]);
		fibers[i].uc_stack.ss_sp = stacks.data() + i * FIBER_STACK;
		fibers[i].uc_stack.ss_size = FIBER_STACK;
		fibers[i].uc_link = &scheduler;
		makecontext(&fibers[i], reinterpret_cast<void (*)()>(fiber), 1, static_cast<int>(i));
	}
	std::mt19937 random(7);
	while (std::find(ended, ended + FIBERS, false) != ended + FIBERS) {
		size_t next = random() % FIBERS;
		if (!ended[next])
			swapcontext(&scheduler, &fibers[next]);
	}
}

static void pool(long launches)
{
	std::mutex lock;
	std::condition_variable wake;
	std::deque<long> work;
	bool over = false;
	auto worker = [&] {
		auto own = program->immediate(0, true);
		for (;;) {
			std::unique_lock<std::mutex> guard(lock);
			wake.wait(guard, [&] { return over || !work.empty(); });
			if (work.empty())
				break;
			long i = work.front();
			work.pop_front();
			/* A kernel is not used by two at once. */
			launch(own, program->kernels[at(i)], program->names[at(i)]);
		}
		MUST(CommandList, Destroy, own);
	};
	std::vector<std::thread> threads;
	for (int i = 0; i < 4; i++)
		threads.emplace_back(worker);
	for (long i = 0; i < launches; i++) {
		std::lock_guard<std::mutex> guard(lock);
		work.push_back(i);
		wake.notify_one();
	}
	{
		std::lock_guard<std::mutex> guard(lock);
		over = true;
	}
	wake.notify_all();
	for (auto &thread : threads)
		thread.join();
}

static NOINLINE ze_kernel_handle_t make(ze_module_handle_t module, const std::string &name)
{
	ze_kernel_desc_t desc = {ZE_STRUCTURE_TYPE_KERNEL_DESC, nullptr, 0, name.c_str()};
	ze_kernel_handle_t out;
	MUST(Kernel, Create, module, &desc, &out);
	return out;
}

static void makers(long launches)
{
	for (long i = 0; i < launches; i += 4) {
		ze_kernel_handle_t kernel = nullptr;
		/* The thread's last call: the thread makes none above that call's slot. */
		std::thread([&] { kernel = make(program->module, program->names[at(i)]); }).join();
		ready(kernel);
		for (long k = i; k < std::min(i + 4, launches); k++)
			launch(list, kernel, program->names[at(i)]);
	}
}

static void contexts(long launches)
{
	Program other(*options);
	auto second = other.immediate(0, true);
	for (long i = 0; i < launches; i++) {
		auto &of = i % 2 == 0 ? *program : other;
		launch(i % 2 == 0 ? list : second, of.kernels[at(i / 2)], of.names[at(i / 2)]);
	}
	MUST(CommandList, Destroy, second);
}

static void recorded(long launches)
{
	auto queue = program->queue();
	auto one = program->list();
	for (long i = 0; i < 4; i++)
		launch(one, program->kernels[at(i)], program->names[at(i)]);
	MUST(CommandList, Close, one);
	for (long i = 4; i < launches; i += 4) {
		MUST(CommandQueue, ExecuteCommandLists, queue, 1, &one, nullptr);
		MUST(CommandQueue, Synchronize, queue, UINT64_MAX);
	}
	MUST(CommandList, Destroy, one);
	MUST(CommandQueue, Destroy, queue);
}

static void kinds(long launches)
{
	ze_group_count_t *where = static_cast<ze_group_count_t *>(program->allocate(4096));
	where[0] = where[1] = COUNT;
	uint32_t *two = reinterpret_cast<uint32_t *>(where + 8);
	*two = 2;
	for (long i = 0; i < launches; i += 3) {
		auto kernel = program->kernels[at(i)];
		MUST(CommandList, AppendLaunchCooperativeKernel, list, kernel, &COUNT, nullptr, 0, nullptr);
		MUST(CommandList, AppendLaunchKernelIndirect, list, kernel, where, nullptr, 0, nullptr);
		account.add(program->names[at(i)], 2);
		launch(i);
	}
}

struct Closing {
	long i = 0;
	~Closing()
	{
		if (program != nullptr)
			launch(i);
	}
};
static thread_local Closing of_thread;

static void closing(long launches)
{
	static Closing *all[8];
	for (long i = 0; i < 8; i++)
		(all[i] = new Closing)->i = i;
	for (long i = 0; i < launches; i++)
		std::thread([=] { of_thread.i = i; }).join();
	/* Before what is below, which was registered first. */
	atexit([] {
		for (auto one : all)
			delete one;
	});
}

static void children(long launches)
{
	static long i;
	for (i = 0; i < 4; i++) {
		pid_t pid = i % 2 == 0 ? fork() : vfork();
		if (pid < 0)
			die("fork", 0);
		if (pid == 0) {
			std::string module = "module=" + options->text("module");
			std::string number = "launches=" + std::to_string(launches / 4);
			execl("/proc/self/exe", "ze_odd", "pool", module.c_str(), number.c_str(),
			      static_cast<char *>(nullptr));
			_exit(127);
		}
		int status;
		if (waitpid(pid, &status, 0) != pid || status != 0)
			die("child", status);
	}
}

static void renewed(long launches)
{
	for (long i = 0; i < launches; i++) {
		auto kernel = make(program->module, program->names[at(i)]);
		launch(list, ready(kernel), program->names[at(i)]);
		MUST(Kernel, Destroy, kernel);
	}
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(long);
	} shapes[] = {
		{"part", part},         {"plugin", plugin},     {"signals", signals},
		{"leaps", leaps},       {"coroutines", coroutines}, {"arena", arena},
		{"pool", pool},         {"makers", makers},     {"contexts", contexts},
		{"recorded", recorded}, {"kinds", kinds},       {"closing", closing},
		{"children", children}, {"renewed", renewed},
	};
	Options own(argc, argv);
	options = &own;
	program = new Program(own);
	list = program->immediate(0, true);
	/* The last of all. */
	atexit([] { account.print("odd"); });
	for_each_shape(argc > 1 ? argv[1] : "", [&](const std::string &name) {
		for (auto &shape : shapes)
			if (name == shape.name)
				return shape.run(own.number("launches", 200)), true;
		return false;
	});
	return 0;
}
