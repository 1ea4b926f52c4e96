/* Settings, clocks and the meeting point of the ranks. */
#include "vaiu.hpp"

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace vaiu {

static const char *variable(const char *name)
{
	const char *value = getenv(name);
	return value ? value : "";
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *value = variable(name);
	return *value ? strtoull(value, nullptr, 0) : otherwise;
}

static std::vector<std::string> list(const char *name)
{
	std::vector<std::string> items;
	std::string rest = variable(name);
	while (!rest.empty()) {
		size_t comma = rest.find(',');
		items.push_back(rest.substr(0, comma));
		rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
	}
	return items;
}

static std::string replaced(std::string text, const char *what, const std::string &by)
{
	for (size_t at; (at = text.find(what)) != std::string::npos;)
		text.replace(at, strlen(what), by);
	return text;
}

static void read_device(Config &c)
{
	if (*variable("VAIU_SOC_HZ"))
		c.soc_hz = atof(variable("VAIU_SOC_HZ"));
	for (auto &item : list("VAIU_DRIFT_PPM"))
		c.drift_ppm.push_back(atof(item.c_str()));
	c.cycles_start = number("VAIU_CYCLES_START", 0);
	c.skew_ns = strtoll(variable("VAIU_SKEW_NS"), nullptr, 0);
	c.jitter_ns = number("VAIU_JITTER_NS", 0);
	c.exec_ns = number("VAIU_EXEC_NS", 0);
	c.prep_ns = number("VAIU_PREP_NS", c.prep_ns);
	c.dma_ns = number("VAIU_DMA_NS", c.dma_ns);
	for (auto &item : list("VAIU_KERNELS")) {
		size_t equals = item.rfind('=');
		if (equals != std::string::npos)
			c.kernels.emplace_back(item.substr(0, equals),
					       strtoull(&item[equals + 1], nullptr, 0));
	}
}

static Config read_config()
{
	Config c;
	c.truth = replaced(variable("VAIU_TRUTH"), "%p", std::to_string(getpid()));
	c.truth_sync = number("VAIU_TRUTH_SYNC", 0);
	if (*variable("VAIU_LAYOUT"))
		c.layout = variable("VAIU_LAYOUT");
	c.cycles = number("VAIU_CYCLES", 1);
	c.prep_records = number("VAIU_PREP_RECORDS", 1);
	read_device(c);
	c.rank = number("RANK", 0);
	c.world_size = number("WORLD_SIZE", 1);
	c.local_rank = number("LOCAL_RANK", c.rank);
	c.metrics = replaced(variable("VAIU_METRICS"), "%r", std::to_string(c.rank));
	c.metrics_ms = number("VAIU_METRICS_MS", c.metrics_ms);
	c.metrics_hold_us = number("VAIU_METRICS_HOLD_US", c.metrics_hold_us);
	c.metrics_old = !strcmp(variable("VAIU_METRICS_FORMAT"), "old");
	c.telemetry_ns = number("VAIU_TELEMETRY_NS", 0);
	c.world = variable("VAIU_WORLD");
	return c;
}

/* Kept for each process: a forked child reads its own, for "%p". */
const Config &config()
{
	static std::atomic<const Config *> kept{nullptr};
	static std::atomic<pid_t> owner{0};
	if (owner.load() != getpid()) {
		kept = new Config(read_config());
		owner = getpid();
	}
	return *kept.load();
}

static uint64_t clock_ns(clockid_t clock)
{
	timespec t;
	clock_gettime(clock, &t);
	return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

uint64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

/* The pair of readings that were closest together. */
static uint64_t measure_offset()
{
	uint64_t best = UINT64_MAX, offset = 0;
	for (int i = 0; i < 64; i++) {
		uint64_t before = clock_ns(CLOCK_MONOTONIC);
		uint64_t real = clock_ns(CLOCK_REALTIME);
		uint64_t after = clock_ns(CLOCK_MONOTONIC);
		if (after - before < best) {
			best = after - before;
			offset = real - (before + best / 2);
		}
	}
	return offset;
}

uint64_t epoch_offset_ns()
{
	static const uint64_t offset = measure_offset();
	return offset;
}

void sleep_until(uint64_t when)
{
	timespec t = {time_t(when / 1000000000u), long(when % 1000000000u)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) != 0) {
	}
}

uint32_t thread_id()
{
	static thread_local uint32_t id = 0;
	static thread_local pid_t owner = 0;
	if (owner != getpid()) {
		owner = getpid();
		id = uint32_t(syscall(SYS_gettid));
	}
	return id;
}

/* Counters in a file that the ranks share, one for each kind of barrier. */
struct World {
	std::atomic<uint32_t> arrived[16];
};

static World *open_world(const std::string &path)
{
	int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(World)) != 0)
		return nullptr;
	void *at = mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return at == MAP_FAILED ? nullptr : static_cast<World *>(at);
}

void world_barrier(unsigned which)
{
	const Config &c = config();
	if (c.world_size < 2 || c.world.empty())
		return;
	static World *world = open_world(c.world);
	if (!world)
		return;
	auto &arrived = world->arrived[which % 16];
	uint32_t mine = arrived.fetch_add(1) + 1;
	uint32_t full = (mine + c.world_size - 1) / c.world_size * c.world_size;
	/* A rank that died must not hang the others. */
	uint64_t give_up = now_ns() + 20000000000u;
	while (int32_t(arrived.load() - full) < 0 && now_ns() < give_up)
		usleep(100);
}

} // namespace vaiu
