#include "stalls.hpp"

#include "objects.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <signal.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace vze {

namespace {

constexpr size_t RECORD = 64;
/* Executions whose records are due; those beyond are refused and counted. */
constexpr size_t MAX_ACTIVE = 1 << 16;

/* First bits of the ten 8-bit counters, in the order of StallReason. PVC has no
 * counter for tdr (-1). */
constexpr int PVC_BITS[STALL_REASONS] = {29, -1, 37, 45, 53, 61, 69, 77, 85, 93};
constexpr int XE2_BITS[STALL_REASONS] = {101, 29, 37, 45, 53, 61, 69, 77, 85, 93};
constexpr int XE3P_BITS[STALL_REASONS] = {133, 61, 69, 77, 85, 93, 101, 109, 117, 125};

struct Layout {
	uint32_t ip_bits;
	const int *counter;
};

Layout layout()
{
	switch (config.stall_format) {
	case StallFormat::Pvc:
		return {29, PVC_BITS};
	case StallFormat::Xe3p:
		return {61, XE3P_BITS};
	default:
		return {29, XE2_BITS};
	}
}

void put_bits(uint8_t *record, uint32_t at, uint32_t width, uint64_t value)
{
	for (uint32_t i = 0; i < width; i++)
		if (value >> i & 1)
			record[(at + i) / 8] |= static_cast<uint8_t>(1U << ((at + i) % 8));
}

/* An execution and how much of each schedule entry was written already. */
struct Active {
	uint32_t device;
	std::shared_ptr<const KernelImmutableData> kernel;
	uint64_t start, end;
	std::vector<uint32_t> written;
};

struct State {
	std::mutex lock;
	std::condition_variable changed;
	std::vector<Active> active;
	std::map<uint32_t, int> files;
	/* Where the current window begins. */
	uint64_t from = 0;
	uint64_t refused = 0;
	bool started = false;
	bool stopping = false;
	std::thread thread;
};

State &state()
{
	static State *s = new State;
	return *s;
}

/* Counts of a window: by kernel and instruction, one for each reason. */
using Counts = std::map<std::pair<const KernelImmutableData *, uint32_t>,
			std::vector<uint32_t>>;

/* How much of `count` has happened at a time. */
uint32_t due(const Active &a, uint32_t count, uint64_t time)
{
	if (time >= a.end)
		return count;
	if (time <= a.start)
		return 0;
	auto part = static_cast<unsigned __int128>(count) * (time - a.start);
	return static_cast<uint32_t>(part / (a.end - a.start));
}

void collect(Active &a, uint64_t time, Counts &counts)
{
	const auto &stalls = a.kernel->info->stalls;
	for (size_t i = 0; i < stalls.size(); i++) {
		/* What this hardware does not count is not seen. */
		if (layout().counter[stalls[i].reason] < 0)
			continue;
		uint32_t now = due(a, stalls[i].count, time);
		if (now == a.written[i])
			continue;
		auto &reasons = counts[{a.kernel.get(), stalls[i].offset}];
		reasons.resize(STALL_REASONS);
		reasons[stalls[i].reason] += now - a.written[i];
		a.written[i] = now;
	}
}

/* The records of one instruction: as many as its largest counter needs. */
void put_records(const KernelImmutableData &kernel, uint32_t offset,
		 std::vector<uint32_t> reasons, std::vector<uint8_t> &out)
{
	Layout l = layout();
	uint64_t address = kernel.isa->gpu_address + offset;
	/* Only Xe3p's field is wide enough for whole addresses; the others
	 * count from the instruction base address. */
	if (l.ip_bits < 61)
		address -= config.isa_base;
	bool left = true;
	while (left) {
		left = false;
		size_t at = out.size();
		out.resize(at + RECORD);
		put_bits(&out[at], 0, l.ip_bits, address >> 3);
		for (int reason = 0; reason < STALL_REASONS; reason++) {
			uint32_t n = std::min<uint32_t>(reasons[reason], 255);
			if (n > 0)
				put_bits(&out[at], static_cast<uint32_t>(l.counter[reason]), 8, n);
			reasons[reason] -= n;
			left = left || reasons[reason] > 0;
		}
	}
}

/* The device's stream: a file, or a FIFO that someone reads; -1 without. */
int stream_of(uint32_t device)
{
	auto &files = state().files;
	auto known = files.find(device);
	if (known != files.end())
		return known->second;
	std::string path = expand_path(config.stall_path, device);
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
	int fd = open(path.c_str(), flags, 0644);
	if (fd >= 0)
		files[device] = fd;
	return fd;
}

/* Whole records only, so that writers of several processes do not mix. */
size_t write_records(int fd, const std::vector<uint8_t> &bytes)
{
	size_t done = 0;
	while (fd >= 0 && done < bytes.size()) {
		/* Up to PIPE_BUF a FIFO takes all or nothing. */
		size_t piece = std::min<size_t>(bytes.size() - done, 4096);
		ssize_t n = write(fd, bytes.data() + done, piece);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		done += static_cast<size_t>(n);
	}
	return done / RECORD;
}

/* One line of truth for a window of a device. */
void tell(uint32_t device, uint64_t from, uint64_t to, size_t written, size_t lost,
	  const Counts &counts)
{
	if (config.truth != TruthMode::Full)
		return;
	Line line("stalls", "window");
	line.number("device", device).number("t0", from).number("t1", to);
	line.number("records", written).number("lost", lost).open("counts");
	for (auto &[key, reasons] : counts)
		for (int reason = 0; reason < STALL_REASONS; reason++)
			if (reasons[reason] > 0)
				line.element(key.first->info->name, key.second, STALL_NAMES[reason],
					     reasons[reason]);
	line.close();
}

/* Writes what the time since `from` brought; the lock is held. */
void close_window(uint64_t from, uint64_t to)
{
	auto &active = state().active;
	std::map<uint32_t, Counts> devices;
	for (Active &a : active)
		collect(a, to, devices[a.device]);
	for (auto &[device, counts] : devices) {
		if (counts.empty())
			continue;
		std::vector<uint8_t> bytes;
		for (auto &[key, reasons] : counts)
			put_records(*key.first, key.second, reasons, bytes);
		size_t written = write_records(stream_of(device), bytes);
		tell(device, from, to, written, bytes.size() / RECORD - written, counts);
	}
	auto over = [to](const Active &a) { return a.end <= to; };
	active.erase(std::remove_if(active.begin(), active.end(), over), active.end());
}

void run()
{
	pthread_setname_np(pthread_self(), "vze stalls");
	std::unique_lock<std::mutex> guard(state().lock);
	while (!state().stopping) {
		if (state().active.empty()) {
			state().changed.wait(guard);
			continue;
		}
		auto end = std::chrono::nanoseconds(state().from + config.stall_window_ns);
		state().changed.wait_until(guard, std::chrono::steady_clock::time_point(end),
					   [] { return state().stopping; });
		uint64_t to = now_ns();
		close_window(state().from, to);
		state().from = to;
	}
}

} // namespace

void stalls_add(uint32_t device, std::shared_ptr<const KernelImmutableData> kernel,
		uint64_t start_ns, uint64_t end_ns)
{
	if (*config.stall_path == '\0')
		return;
	std::lock_guard<std::mutex> guard(state().lock);
	if (state().active.size() >= MAX_ACTIVE) {
		state().refused++;
		return;
	}
	/* Windows without executions are left out. */
	if (state().active.empty())
		state().from = std::max(state().from, std::min(start_ns, now_ns()));
	std::vector<uint32_t> none(kernel->info->stalls.size(), 0);
	state().active.push_back({device, std::move(kernel), start_ns, end_ns, std::move(none)});
	if (!state().started) {
		state().started = true;
		sigset_t all, old;
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		state().thread = std::thread(run);
		pthread_sigmask(SIG_SETMASK, &old, nullptr);
	}
	state().changed.notify_one();
}

void stalls_stop()
{
	{
		std::lock_guard<std::mutex> guard(state().lock);
		state().stopping = true;
		state().changed.notify_all();
	}
	if (state().thread.joinable())
		state().thread.join();
	{
		/* What the last window missed. */
		std::lock_guard<std::mutex> guard(state().lock);
		close_window(state().from, now_ns());
	}
	if (state().refused > 0 && config.truth == TruthMode::Full)
		Line("stalls", "refused").number("n", state().refused);
}

void stalls_after_fork()
{
	State &s = state();
	new (&s.lock) std::mutex;
	new (&s.changed) std::condition_variable;
	new (&s.thread) std::thread;
	s.active.clear();
	s.started = s.stopping = false;
	s.refused = 0;
}

} // namespace vze
