/*
 * A Level Zero program that does nothing but launch, 20 calls below main.
 *
 *   cost module=FILE batches=N   ns per launch, one line for each batch of 2,000.
 *   rate module=FILE threads=N duty=PERCENT seconds=N   each thread is on a CPU for PERCENT
 *        of the time, its probes included. Prints how many launches there were, and how many
 *        CPUs they took
 */
#include "ze.h"

#include <functional>
#include <thread>

static Program *program;
static volatile int sink;

static NOINLINE void launch(ze_command_list_handle_t list)
{
	ze_group_count_t count = {4, 2, 1};
	MUST(CommandList, AppendLaunchKernel, list, program->kernels[0], &count, nullptr, 0, nullptr);
}

static double cpu_seconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

static NOINLINE void below(int depth, const std::function<void()> &work)
{
	volatile int room[4] = {depth};
	if (depth > 0)
		below(depth - 1, work);
	else
		work();
	sink = room[0];
}

static void batch(ze_command_list_handle_t list)
{
	enum { LAUNCHES = 2000 };
	uint64_t begun = now_ns();
	for (int i = 0; i < LAUNCHES; i++)
		launch(list);
	printf("%.1f\n", static_cast<double>(now_ns() - begun) / LAUNCHES);
}

static uint64_t busily(ze_command_list_handle_t list, double part, double seconds)
{
	uint64_t launches = 0;
	double begun = seconds_now(), cpu = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
	for (double now = 0; now < seconds; now = seconds_now() - begun) {
		if (cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - cpu > now * part) {
			usleep(200);
			continue;
		}
		for (int i = 0; i < 20; i++, launches++)
			launch(list);
	}
	return launches;
}

static void rate(const Options &options)
{
	double part = static_cast<double>(options.number("duty", 70)) / 100;
	double seconds = static_cast<double>(options.number("seconds", 3));
	std::vector<uint64_t> made(static_cast<size_t>(options.number("threads", 1)));
	std::vector<std::thread> threads;
	double begun = seconds_now(), cpu = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
	for (auto &own : made)
		threads.emplace_back([&] {
			auto list = program->immediate();
			below(20, [&] { own = busily(list, part, seconds); });
		});
	for (auto &thread : threads)
		thread.join();
	cpu = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	uint64_t all = 0;
	for (auto own : made)
		all += own;
	printf("%lu %.3f\n", static_cast<unsigned long>(all), cpu / (seconds_now() - begun));
}

int main(int argc, char **argv)
{
	Options options(argc, argv);
	program = new Program(options);
	/* Whoever attaches has the time to. */
	usleep(1200000);
	if (strcmp(argv[1], "rate") == 0) {
		rate(options);
		return 0;
	}
	auto list = program->immediate();
	for (long i = 0; i < options.number("batches", 60); i++)
		below(20, [&] { batch(list); });
	return 0;
}
