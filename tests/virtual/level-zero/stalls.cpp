#include "stalls.hpp"

#include "clock.hpp"
#include "stall_record.hpp"
#include "truth.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <pthread.h>
#include <signal.h>
#include <thread>

namespace vze {

namespace {

/* Executions whose records are due; those beyond are refused and counted. */
constexpr size_t MAX_ACTIVE = 1 << 16;

/* What an execution gives one entry of its kernel's schedule in a window. */
struct Given {
	uint32_t taken = 0, written = 0;
};

/* The part of an execution that one GT sees. Only the kernel's schedule is kept:
 * its place may be another's before its last samples are read. */
struct Active {
	Execution execution;
	uint32_t gt;
	/* Every GT of how many sees every so manieth sample. */
	uint32_t gts;
	std::shared_ptr<const KernelInfo> kernel;
	/* Samples so far, by entry of the schedule. */
	std::vector<uint32_t> seen;
	/* In the current window. */
	std::vector<Given> given;
};

/* Samples of one execution for one reason, not yet in a record. */
struct Piece {
	Given *given;
	StallReason reason;
	uint32_t count;
};

struct State {
	std::mutex lock;
	std::condition_variable changed;
	std::vector<Active> active;
	/* By device and GT. */
	std::map<std::pair<uint32_t, uint32_t>, StallStream> streams;
	/* Where the current window begins. */
	uint64_t from = 0;
	/* Samples so far: every so manieth is taken. */
	uint64_t sampled = 0;
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

/* Points before a time, of a grid with `per_ms` points per millisecond: what is
 * seen of a kernel depends on nothing but when it runs. */
uint64_t grid(uint32_t per_ms, uint64_t time)
{
	return static_cast<uint64_t>(static_cast<unsigned __int128>(per_ms) * time / 1000000);
}

/* How many samples a device has seen of an entry of the schedule at a time. */
uint32_t seen_by(const Execution &e, const Stall &stall, uint64_t time)
{
	time = std::min(time, e.end_ns);
	if (time <= e.start_ns && time < e.end_ns)
		return 0;
	if (stall.per_ms)
		return static_cast<uint32_t>(grid(stall.count, time) - grid(stall.count, e.start_ns));
	if (time >= e.end_ns)
		return stall.count;
	auto part = static_cast<unsigned __int128>(stall.count) * (time - e.start_ns);
	return static_cast<uint32_t>(part / (e.end_ns - e.start_ns));
}

/* Takes what an execution brought until now; how many samples were left out. */
uint64_t collect(Active &a, uint64_t time, std::map<uint64_t, std::vector<Piece>> &taken)
{
	const auto &stalls = a.kernel->stalls;
	uint64_t skipped = 0;
	for (size_t i = 0; i < stalls.size(); i++) {
		a.given[i] = {};
		/* What this hardware does not count is not seen. */
		if (!has_counter(stalls[i].reason))
			continue;
		uint32_t now = seen_by(a.execution, stalls[i], time);
		now = (now + a.gts - 1 - a.gt % a.gts) / a.gts;
		uint32_t n = now - a.seen[i];
		a.seen[i] = now;
		uint64_t before = state().sampled / config.stall_every;
		state().sampled += n;
		auto left = static_cast<uint32_t>(state().sampled / config.stall_every - before);
		skipped += n - left;
		if (left == 0)
			continue;
		a.given[i].taken = left;
		taken[a.execution.address + stalls[i].offset].push_back(
			{&a.given[i], stalls[i].reason, left});
	}
	return skipped;
}

/* The records of a window, and whose samples each of them holds. */
struct Records {
	std::vector<uint8_t> bytes;
	std::vector<std::vector<Piece>> pieces;
};

/* As many records of an instruction as its largest counter needs. */
void put_records(uint64_t address, std::vector<Piece> left, Records &out)
{
	while (!left.empty()) {
		ReasonCounts counts = {};
		std::vector<Piece> here;
		for (Piece &piece : left) {
			uint32_t n = std::min(piece.count, STALL_COUNTER_MAX - counts[piece.reason]);
			if (n == 0)
				continue;
			counts[piece.reason] += n;
			piece.count -= n;
			here.push_back({piece.given, piece.reason, n});
		}
		put_record(address, counts, out.bytes);
		out.pieces.push_back(std::move(here));
		auto done = [](const Piece &piece) { return piece.count == 0; };
		left.erase(std::remove_if(left.begin(), left.end(), done), left.end());
	}
}

/* A window of one GT. */
struct Window {
	uint64_t from, to;
	size_t records, lost;
	bool dropped;
	uint64_t skipped;
};

/* One line of truth for a window. */
void tell(const StallStream &stream, const Window &window)
{
	if (config.truth != TruthMode::Full)
		return;
	Line line("stalls", "window");
	line.number("device", stream.device).number("gt", stream.gt);
	line.number("t0", window.from).number("t1", window.to);
	line.number("records", window.records).number("lost", window.lost);
	line.number("dropped", window.dropped).number("skipped", window.skipped);
	std::map<std::tuple<std::string_view, uint32_t, StallReason>, uint64_t> counts;
	line.open("execs");
	for (const Active &a : state().active) {
		if (a.execution.device != stream.device || a.gt != stream.gt)
			continue;
		for (size_t i = 0; i < a.given.size(); i++) {
			const Stall &stall = a.kernel->stalls[i];
			if (a.given[i].taken == 0)
				continue;
			counts[{a.kernel->name, stall.offset, stall.reason}] += a.given[i].taken;
			line.element(a.execution.seq, a.execution.address, stall.offset,
				     STALL_NAMES[stall.reason], a.given[i].written,
				     a.given[i].taken - a.given[i].written);
		}
	}
	line.close().open("counts");
	for (auto &[key, n] : counts)
		line.element(std::get<0>(key), std::get<1>(key), STALL_NAMES[std::get<2>(key)], n);
	line.close();
}

/* Writes what the time since `from` brought to one GT. */
void close_stream(StallStream &stream, uint64_t from, uint64_t to)
{
	std::map<uint64_t, std::vector<Piece>> taken;
	uint64_t skipped = 0;
	for (Active &a : state().active)
		if (a.execution.device == stream.device && a.gt == stream.gt)
			skipped += collect(a, to, taken);
	Records records;
	for (auto &[address, pieces] : taken)
		put_records(address, std::move(pieces), records);
	if (records.pieces.empty() && skipped == 0)
		return;
	if (!records.pieces.empty())
		stream.windows++;
	bool dropped = config.stall_drop > 0 && !records.pieces.empty() &&
		       stream.windows % config.stall_drop == 0;
	size_t written = stream.write_window(from, to, records.bytes, dropped);
	for (size_t i = 0; i < written; i++)
		for (const Piece &piece : records.pieces[i])
			piece.given->written += piece.count;
	tell(stream, {from, to, written, records.pieces.size() - written, dropped, skipped});
}

/* Ends a window of all GTs; the lock is held. */
void close_window(uint64_t from, uint64_t to)
{
	for (auto &[key, stream] : state().streams)
		close_stream(stream, from, to);
	auto &active = state().active;
	auto over = [to](const Active &a) { return a.execution.end_ns <= to; };
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
		uint64_t to = device_now_ns();
		close_window(state().from, to);
		state().from = to;
	}
}

/* Starts the thread; the lock is held. */
void ensure_thread()
{
	if (state().started)
		return;
	state().started = true;
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	state().thread = std::thread(run);
	pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

} // namespace

void stalls_add(const Execution &execution, std::shared_ptr<const KernelInfo> kernel)
{
	if (*config.stall_path == '\0')
		return;
	std::lock_guard<std::mutex> guard(state().lock);
	if (state().active.size() >= MAX_ACTIVE) {
		state().refused++;
		return;
	}
	/* Windows without executions are left out. An execution that the engine's thread
	 * computes late may have begun before the last window ended: the next one begins
	 * with it, and so overlaps the last. */
	uint64_t from = state().active.empty() ? device_now_ns() : state().from;
	state().from = std::min(from, execution.start_ns);
	uint32_t gts = execution.sub < 0 ? gts_of_device() : 1;
	uint32_t first = execution.sub < 0 ? 0 : static_cast<uint32_t>(execution.sub);
	size_t entries = kernel->stalls.size();
	for (uint32_t gt = first; gt < first + gts; gt++) {
		auto &stream = state().streams[{execution.device, gt}];
		stream.device = execution.device;
		stream.gt = gt;
		state().active.push_back({execution, gt, gts, kernel,
					  std::vector<uint32_t>(entries), std::vector<Given>(entries)});
	}
	ensure_thread();
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
		close_window(state().from, device_now_ns());
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
