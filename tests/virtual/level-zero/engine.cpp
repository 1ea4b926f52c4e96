#include "engine.hpp"

#include "objects.hpp"
#include "stalls.hpp"

#include <algorithm>
#include <cstring>
#include <pthread.h>
#include <signal.h>

namespace vze {

std::atomic<uint32_t> held_streams{0};

namespace {

/* Commands that may wait on one engine, and that may run at once: where a real
 * ring is full and its writer waits. */
constexpr size_t MAX_QUEUED = 1 << 16;
constexpr size_t MAX_RUNNING = 1 << 14;

const char *kind_name(CommandKind kind)
{
	switch (kind) {
	case CommandKind::Kernel:
		return "kernel";
	case CommandKind::Copy:
		return "copy";
	case CommandKind::Fill:
		return "fill";
	case CommandKind::Barrier:
		return "barrier";
	default:
		return "";
	}
}

/* Whether it occupies one of the engine's lanes. */
bool works(const Command &command)
{
	return command.kind == CommandKind::Kernel || command.kind == CommandKind::Copy ||
	       command.kind == CommandKind::Fill;
}

bool is_barrier(const Command &command)
{
	return command.kind == CommandKind::Marker || command.kind == CommandKind::Barrier ||
	       command.after_all;
}

void read_indirect(Command &command)
{
	ze_group_count_t count = {0, 0, 0};
	if (command.indirect == nullptr || !readable(command.indirect, sizeof(count)))
		return;
	memcpy(&count, command.indirect, sizeof(count));
	command.groups[0] = count.groupCountX;
	command.groups[1] = count.groupCountY;
	command.groups[2] = count.groupCountZ;
}

uint64_t duration(const Command &command)
{
	if (command.kind == CommandKind::Copy || command.kind == CommandKind::Fill)
		return 500 + command.bytes * 1000 / config.copy_rate;
	if (command.kind != CommandKind::Kernel)
		return 0;
	const KernelInfo &info = *command.kernel->info;
	uint64_t groups = uint64_t{command.groups[0]} * command.groups[1] * command.groups[2];
	uint64_t ns = info.turns.empty() ? info.ns : info.turns[command.turn % info.turns.size()];
	return ns + info.group_ns * groups;
}

void write_timestamps(const Command &command, uint64_t start)
{
	if (command.kind == CommandKind::WriteTimestamp) {
		uint64_t ticks = low_bits(ticks_at(command.clock_device, start), config.timestamp_bits);
		careful_copy(command.to, &ticks, sizeof(ticks));
		return;
	}
	auto *out = static_cast<ze_kernel_timestamp_result_t *>(command.to);
	for (auto &event : command.queried) {
		ze_kernel_timestamp_data_t span = {kernel_ticks(event->device, event->start_ns),
						   kernel_ticks(event->device, event->end_ns)};
		ze_kernel_timestamp_result_t result = {span, span};
		careful_copy(out++, &result, sizeof(result));
	}
}

void fill(const Command &command)
{
	const auto &pattern = command.pattern;
	std::vector<uint8_t> piece;
	while (piece.size() < 65536 && piece.size() < command.bytes)
		piece.insert(piece.end(), pattern.begin(), pattern.end());
	for (uint64_t done = 0; done < command.bytes; done += piece.size()) {
		size_t n = std::min<uint64_t>(piece.size(), command.bytes - done);
		if (!careful_copy(static_cast<uint8_t *>(command.to) + done, piece.data(), n))
			break;
	}
}

/* What a command does to memory. */
void take_effect(const Command &command, uint64_t start)
{
	switch (command.kind) {
	case CommandKind::Copy:
		careful_copy(command.to, command.from, command.bytes);
		break;
	case CommandKind::Fill:
		fill(command);
		break;
	case CommandKind::WriteTimestamp:
	case CommandKind::QueryTimestamps:
		write_timestamps(command, start);
		break;
	case CommandKind::HostFunction:
		command.host_function(command.to);
		break;
	default:
		break;
	}
}

} // namespace

Engine::Engine(uint32_t device, int32_t sub, uint32_t ordinal, uint32_t index)
    : device(device), sub(sub), ordinal(ordinal), index(index), lanes_(config.lanes, 0)
{
}

std::shared_ptr<Stream> Engine::new_stream()
{
	auto stream = std::make_shared<Stream>();
	stream->engine = this;
	std::lock_guard<std::mutex> guard(lock_);
	auto gone = [](auto &weak) { return weak.expired(); };
	streams_.erase(std::remove_if(streams_.begin(), streams_.end(), gone), streams_.end());
	streams_.push_back(stream);
	return stream;
}

void Engine::ensure_thread()
{
	if (started_)
		return;
	started_ = true;
	/* Signals of the program are not for this thread. */
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	thread_ = std::thread([this] {
		pthread_setname_np(pthread_self(), "vze engine");
		run();
	});
	pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void Engine::submit(Stream &stream, std::vector<Command> commands)
{
	std::unique_lock<std::mutex> guard(lock_);
	ensure_thread();
	for (Command &command : commands) {
		while (queued_ >= MAX_QUEUED && !stopping_) {
			wake_.notify_one();
			room_.wait(guard);
		}
		stream.waiting.push_back(std::move(command));
		queued_++;
	}
	if (sleeping_)
		wake_.notify_one();
}

void Engine::submit_one(Stream &stream, Command command)
{
	std::unique_lock<std::mutex> guard(lock_);
	ensure_thread();
	while (queued_ >= MAX_QUEUED && !stopping_)
		room_.wait(guard);
	stream.waiting.push_back(std::move(command));
	queued_++;
	if (sleeping_)
		wake_.notify_one();
}

std::shared_ptr<EventState> Engine::marker(Stream &stream)
{
	Command command;
	command.kind = CommandKind::Marker;
	command.signal = std::make_shared<EventState>();
	auto event = command.signal;
	submit_one(stream, std::move(command));
	return event;
}

std::vector<std::shared_ptr<EventState>> Engine::markers()
{
	std::vector<std::shared_ptr<Stream>> streams;
	{
		std::lock_guard<std::mutex> guard(lock_);
		for (auto &weak : streams_)
			if (auto stream = weak.lock())
				streams.push_back(stream);
	}
	std::vector<std::shared_ptr<EventState>> out;
	for (auto &stream : streams)
		out.push_back(marker(*stream));
	return out;
}

void Engine::poke()
{
	std::lock_guard<std::mutex> guard(lock_);
	if (sleeping_)
		wake_.notify_one();
}

void Engine::stop()
{
	{
		std::lock_guard<std::mutex> guard(lock_);
		stopping_ = true;
		wake_.notify_all();
		room_.notify_all();
	}
	if (thread_.joinable())
		thread_.join();
}

void Engine::before_fork()
{
	lock_.lock();
}

void Engine::after_fork(bool child)
{
	if (child) {
		new (&wake_) std::condition_variable;
		new (&room_) std::condition_variable;
		new (&thread_) std::thread;
		running_ = {};
		for (auto &weak : streams_)
			if (auto stream = weak.lock())
				stream->waiting.clear(), stream->held = false;
		queued_ = 0;
		started_ = sleeping_ = stopping_ = false;
	}
	lock_.unlock();
}

/* Computes start and end of a command that waits for nothing any more. */
void Engine::schedule(Stream &stream, Command command)
{
	uint64_t start = command.submit_ns + (works(command) ? config.latency_ns : 0);
	for (auto &event : command.waits)
		start = std::max(start, event->end_ns);
	if (is_barrier(command))
		start = std::max(start, stream.all_end);
	else
		start = std::max(start, command.in_order ? stream.last_end : stream.barrier_end);
	uint64_t *lane = nullptr;
	if (works(command)) {
		lane = &*std::min_element(lanes_.begin(), lanes_.end());
		start = std::max(start, *lane + config.gap_ns);
		read_indirect(command);
	}
	uint64_t end = start + duration(command);
	if (lane != nullptr)
		*lane = end;
	stream.last_end = end;
	stream.all_end = std::max(stream.all_end, end);
	if (is_barrier(command))
		stream.barrier_end = end;
	if (command.kind == CommandKind::Kernel && !command.kernel->info->stalls.empty())
		stalls_add({device, sub, command.seq, command.kernel->address(), start, end},
			   command.kernel->own_info);
	running_.push({start, end, order_++, std::move(command)});
}

/* Whether a stream's first command waits for nothing any more. */
bool Engine::ready(Stream &stream)
{
	auto &waits = stream.waiting.front().waits;
	if (waits.empty())
		return true;
	/* Counted before the check, so that no signal goes unnoticed in between. */
	if (!stream.held)
		held_streams.fetch_add(1);
	stream.held = true;
	for (auto &event : waits)
		if (!event->signalled.load())
			return false;
	stream.held = false;
	held_streams.fetch_sub(1);
	return true;
}

/* Schedules the first commands of all streams; whether there were any. */
bool Engine::schedule_ready()
{
	bool any = false;
	for (auto &weak : streams_) {
		auto stream = weak.lock();
		while (stream && !stream->waiting.empty() && running_.size() < MAX_RUNNING) {
			if (!ready(*stream))
				break;
			Command command = std::move(stream->waiting.front());
			stream->waiting.pop_front();
			if (queued_-- == MAX_QUEUED)
				room_.notify_all();
			schedule(*stream, std::move(command));
			any = true;
		}
	}
	return any;
}

void Engine::take_finished(std::vector<Running> &out)
{
	uint64_t now = device_now_ns();
	while (!running_.empty() && running_.top().end <= now) {
		out.push_back(std::move(const_cast<Running &>(running_.top())));
		running_.pop();
	}
}

void Engine::tell(const Running &running)
{
	const Command &command = running.command;
	const char *kind = kind_name(command.kind);
	if (*kind == '\0' || config.truth == TruthMode::Off)
		return;
	if (config.truth == TruthMode::Count) {
		static Counter counters[] = {{"execs", "kernel"}, {"execs", "other"}};
		counters[command.kind == CommandKind::Kernel ? 0 : 1].add();
		return;
	}
	Line line("exec", kind);
	line.number("seq", command.seq).number("submit", command.submit);
	line.number("device", device).signed_number("sub", sub);
	line.number("ordinal", ordinal).number("index", index);
	if (command.kernel) {
		line.text("kernel", command.kernel->info->name);
		line.number("isa", command.kernel->address());
		line.triple("groups", command.groups[0], command.groups[1], command.groups[2]);
	}
	line.number("bytes", command.bytes);
	line.number("start_ticks", kernel_ticks(device, running.start));
	line.number("end_ticks", kernel_ticks(device, running.end));
	line.number("start_ns", running.start).number("end_ns", running.end);
}

void Engine::finish(Running &running)
{
	Command &command = running.command;
	take_effect(command, running.start);
	tell(running);
	/* Whoever waits for it may unload its module and expect its place free. */
	command.kernel.reset();
	if (command.signal == nullptr)
		return;
	if (command.kind == CommandKind::ResetEvent)
		reset_event(*command.signal);
	else
		signal_event(*command.signal, running.start, running.end);
}

void Engine::run()
{
	std::vector<Running> finished;
	std::unique_lock<std::mutex> guard(lock_);
	for (;;) {
		take_finished(finished);
		if (!finished.empty()) {
			guard.unlock();
			for (Running &running : finished)
				finish(running);
			finished.clear();
			guard.lock();
			continue;
		}
		if (schedule_ready())
			continue;
		if (stopping_)
			break;
		sleeping_ = true;
		if (running_.empty()) {
			wake_.wait(guard);
		} else {
			auto end = std::chrono::nanoseconds(running_.top().end);
			wake_.wait_until(guard, std::chrono::steady_clock::time_point(end));
		}
		sleeping_ = false;
	}
	cut();
}

/* The process ends: what is running gets no further. */
void Engine::cut()
{
	uint64_t now = device_now_ns();
	while (!running_.empty()) {
		auto running = std::move(const_cast<Running &>(running_.top()));
		running_.pop();
		if (running.start >= now)
			continue;
		running.end = std::min(running.end, now);
		tell(running);
	}
}

} // namespace vze
