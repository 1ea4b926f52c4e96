/*
 * The virtual device: one engine that does its blocks in the order of their
 * submission, on a thread. What a block does is planned exactly (start and end
 * of each phase), then the thread sleeps until the plan is over; the plan is
 * the truth. The cycle counter has 32 bits, a frequency, a drift and a start.
 */
#include "vaiu.hpp"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <pthread.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

namespace vaiu {

constexpr size_t QUEUE_CAPACITY = 32768;

struct Progress {
	uint64_t submitted = 0, done = 0;
};

struct Device {
	std::mutex lock;
	std::condition_variable work, progress;
	std::deque<Block> queue;
	std::map<uint64_t, Progress> streams;
	uint64_t free_at = 0;
	uint64_t random = 88172645463325252u;
	bool stop = false, running = false;
	std::thread thread;
};

static std::atomic<Device *> the_device{nullptr};
static std::atomic<uint32_t> the_id{0};

static Device &device()
{
	Device *d = the_device.load();
	if (!d) {
		Device *fresh = new Device;
		if (the_device.compare_exchange_strong(d, fresh))
			return *fresh;
		delete fresh;
	}
	return *d;
}

uint32_t device_id() { return the_id; }

Traffic &traffic()
{
	static Traffic *one = new Traffic;
	return *one;
}

/* Cycles since the epoch of CLOCK_MONOTONIC, before they wrap. */
static long double cycles_at(uint64_t ns)
{
	const Config &c = config();
	uint32_t id = the_id;
	double ppm = c.drift_ppm.empty() ? 0 : c.drift_ppm[id % c.drift_ppm.size()];
	/* Devices are not switched on at the same time. */
	long double start = c.cycles_start + 1000003.0L * id;
	return start + (long double)ns * 1e-9L * c.soc_hz * (1 + ppm * 1e-6L);
}

uint32_t device_cycles(uint64_t ns)
{
	return uint32_t(uint64_t(std::fmod(cycles_at(ns), 4294967296.0L)));
}

static uint64_t exec_ns(const std::string &name)
{
	const Config &c = config();
	for (auto &kernel : c.kernels)
		if (kernel.first == name)
			return kernel.second;
	if (c.exec_ns)
		return c.exec_ns;
	/* Between 20 and 147 us, always the same for a name. */
	uint32_t hash = 2166136261u;
	for (unsigned char letter : name)
		hash = (hash ^ letter) * 16777619u;
	return 20000 + hash % 128 * 1000;
}

static uint64_t dma_ns(uint64_t bytes)
{
	return bytes ? config().dma_ns + uint64_t(bytes / config().dma_bytes_per_ns) : 0;
}

/* When each phase begins and ends: ends of DmaI, Prep, Exec and DmaO. */
struct Plan {
	uint64_t at[5];
	uint64_t cycles[5];
};

static Plan plan(const Block &block, uint64_t start)
{
	uint64_t phases[4] = {0, 0, 0, 0};
	switch (block.what) {
	case Block::CONTROL:
		phases[0] = dma_ns(block.bytes_in);
		phases[1] = config().prep_ns;
		phases[2] = exec_ns(block.name);
		phases[3] = dma_ns(block.bytes_out);
		break;
	case Block::HTOD:
		phases[0] = dma_ns(block.bytes_in);
		break;
	case Block::FILL:
		phases[2] = dma_ns(block.bytes_in) / 4;
		break;
	case Block::DTOH:
	case Block::PTOP:
		phases[3] = dma_ns(block.bytes_out);
		break;
	case Block::CALLBACK:
		break;
	}
	Plan p;
	p.at[0] = start;
	for (int i = 0; i < 4; i++)
		p.at[i + 1] = p.at[i] + phases[i];
	for (int i = 0; i < 5; i++)
		p.cycles[i] = device_cycles(p.at[i]);
	return p;
}

/* How far off the host the device's own records are: see the AIU guide. */
static int64_t clock_error(Device &d)
{
	const Config &c = config();
	d.random ^= d.random << 13;
	d.random ^= d.random >> 7;
	d.random ^= d.random << 17;
	return c.skew_ns + (c.jitter_ns ? int64_t(d.random % (2 * c.jitter_ns + 1)) - int64_t(c.jitter_ns) : 0);
}

/* A record of one phase, unless the block skipped it. */
static void phase(const Block &b, const Plan &p, int which, Kind kind, uint32_t what,
		  uint64_t bytes, int64_t error)
{
	if (!wanted(kind) || (kind != COMPUTE && !bytes))
		return;
	Activity a;
	a.kind = kind;
	a.what = what;
	a.device = the_id;
	a.context = 1;
	a.stream = uint32_t(b.stream);
	a.correlation = b.correlation;
	a.start = p.at[which] + error;
	a.end = p.at[which + 1] + error;
	a.queued = b.queued;
	a.submitted = b.submitted;
	a.bytes = bytes;
	a.address = b.address;
	a.pid = uint32_t(getpid());
	a.name = b.name;
	/* Copies that are no part of a control block have no counters. */
	if (b.what == Block::CONTROL)
		std::copy(p.cycles, p.cycles + 5, a.cycles);
	report(a);
}

static void report_all(const Block &b, const Plan &p, int64_t error)
{
	switch (b.what) {
	case Block::CONTROL:
		phase(b, p, 0, MEMCPY, COPY_HTOD, b.bytes_in, error);
		if (config().prep_records)
			phase(b, p, 1, COMPUTE, OPERATION_PREP, 0, error);
		phase(b, p, 2, COMPUTE, OPERATION_EXECUTE, 0, error);
		phase(b, p, 3, MEMCPY, COPY_DTOH, b.bytes_out, error);
		break;
	case Block::HTOD:
		phase(b, p, 0, MEMCPY, COPY_HTOD, b.bytes_in, error);
		break;
	case Block::DTOH:
		phase(b, p, 3, MEMCPY, COPY_DTOH, b.bytes_out, error);
		break;
	case Block::PTOP:
		phase(b, p, 3, MEMCPY, COPY_PTOP, b.bytes_out, error);
		break;
	case Block::FILL:
		phase(b, p, 2, MEMSET, 0, b.bytes_in, error);
		break;
	case Block::CALLBACK:
		break;
	}
}

static void tell(const Block &b, const Plan &p)
{
	static const char *const names[] = {"control", "htod", "dtoh", "ptop", "fill", "callback"};
	if (!truth_on())
		return;
	Line line("op");
	line.number("corr", b.correlation).number("device", the_id).number("stream", b.stream);
	line.text("kind", names[b.what]).text("name", b.name);
	line.number("queued", b.queued).number("submitted", b.submitted);
	line.number("start", p.at[0]).number("end", p.at[4]).number("seen", now_ns());
	line.numbers("at", p.at, 5).numbers("ts", p.cycles, 5);
	line.number("bytes_in", b.bytes_in).number("bytes_out", b.bytes_out);
	truth(line.finish());
}

static void count(const Block &b, const Plan &p)
{
	Traffic &t = traffic();
	t.busy_ns += p.at[4] - p.at[0];
	if (b.what == Block::PTOP) {
		t.rdma_written += b.bytes_out;
		return;
	}
	t.from_host += b.what == Block::FILL ? 0 : b.bytes_in;
	t.written_memory += b.bytes_in;
	t.to_host += b.bytes_out;
	t.read_memory += b.bytes_out;
}

static void execute(Device &d, const Block &block)
{
	Plan p = plan(block, std::max(block.submitted, d.free_at));
	d.free_at = p.at[4];
	if (p.at[4] > now_ns())
		sleep_until(p.at[4]);
	if (block.callback)
		block.callback();
	count(block, p);
	report_all(block, p, clock_error(d));
	tell(block, p);
}

static void run(Device *d)
{
	pthread_setname_np(pthread_self(), "vaiu-device");
	/* Completions are as late as an interrupt, not as a lazy timer. */
	prctl(PR_SET_TIMERSLACK, 1);
	std::unique_lock<std::mutex> guard(d->lock);
	for (;;) {
		d->work.wait(guard, [&] { return d->stop || !d->queue.empty(); });
		if (d->queue.empty())
			return;
		Block block = std::move(d->queue.front());
		d->queue.pop_front();
		guard.unlock();
		execute(*d, block);
		guard.lock();
		d->streams[block.stream].done = block.sequence;
		d->progress.notify_all();
	}
}

static void tell_clock()
{
	const Config &c = config();
	uint32_t id = the_id;
	Line line("device");
	line.number("device", id).real("hz", c.soc_hz);
	line.real("ppm", c.drift_ppm.empty() ? 0 : c.drift_ppm[id % c.drift_ppm.size()]);
	uint64_t now = now_ns();
	line.number("at", now).number("cycles", device_cycles(now));
	line.raw("skew", std::to_string(c.skew_ns)).number("jitter", c.jitter_ns);
	truth(line.finish());
}

void device_start(uint32_t id)
{
	Device &d = device();
	std::lock_guard<std::mutex> guard(d.lock);
	if (d.running)
		return;
	the_id = id;
	d.running = true;
	d.thread = std::thread(run, &d);
	if (truth_on())
		tell_clock();
	metrics_start();
}

uint64_t device_submit(Block &&block)
{
	Device &d = device();
	bool running;
	{
		std::lock_guard<std::mutex> guard(d.lock);
		running = d.running;
	}
	if (!running)
		device_start(config().local_rank);
	std::unique_lock<std::mutex> guard(d.lock);
	/* As the real runtime does: who is too fast waits for the queue. */
	d.progress.wait(guard, [&] { return d.queue.size() < QUEUE_CAPACITY; });
	block.submitted = now_ns();
	block.sequence = ++d.streams[block.stream].submitted;
	uint64_t sequence = block.sequence;
	d.queue.push_back(std::move(block));
	d.work.notify_one();
	return sequence;
}

void device_wait(uint64_t stream)
{
	Device &d = device();
	std::unique_lock<std::mutex> guard(d.lock);
	uint64_t target = d.streams[stream].submitted;
	d.progress.wait(guard, [&] { return d.streams[stream].done >= target; });
}

bool device_idle(uint64_t stream)
{
	Device &d = device();
	std::lock_guard<std::mutex> guard(d.lock);
	Progress &p = d.streams[stream];
	return p.done >= p.submitted;
}

/* The child has no device thread; it gets a device of its own when it needs one. */
static void forget_parent() { the_device = nullptr; }

__attribute__((constructor)) static void at_start()
{
	pthread_atfork(nullptr, nullptr, forget_parent);
}

/* Lets the engine finish what it has: its truth is part of the run's. */
__attribute__((destructor)) static void at_end()
{
	Device *d = the_device.load();
	if (!d || !d->thread.joinable())
		return;
	{
		std::lock_guard<std::mutex> guard(d->lock);
		d->stop = true;
		d->work.notify_all();
	}
	d->thread.join();
	truth_flush();
}

} // namespace vaiu
