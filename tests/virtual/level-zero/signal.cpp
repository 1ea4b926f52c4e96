/* Events: signals, waits, and the engines that exist. */
#include "engine.hpp"

#include "objects.hpp"

#include <cstring>

namespace vze {

namespace {

/* One lock for all waits of the host: waits are rare beside launches. */
struct Waits {
	std::mutex lock;
	std::condition_variable changed;
	std::atomic<uint32_t> waiting{0};
};

/* Never destroyed, as threads may still wait while the process exits. */
Waits &waits()
{
	static Waits *w = new Waits;
	return *w;
}

struct Engines {
	std::mutex lock;
	std::vector<Engine *> all;
};

Engines &engines()
{
	static Engines *e = new Engines;
	return *e;
}

std::vector<Engine *> all_engines()
{
	std::lock_guard<std::mutex> guard(engines().lock);
	return engines().all;
}

void write_packet(EventState &event)
{
	if (event.packet == nullptr)
		return;
	auto start = static_cast<uint32_t>(kernel_ticks(event.device, event.start_ns));
	auto end = static_cast<uint32_t>(kernel_ticks(event.device, event.end_ns));
	uint32_t packet[4] = {start, start, end, end};
	memcpy(event.packet, packet, sizeof(packet));
}

/* Engines may hold commands back until an event comes. */
void poke_engines()
{
	if (held_streams.load() == 0)
		return;
	for (Engine *engine : all_engines())
		engine->poke();
}

} // namespace

void signal_event(EventState &event, uint64_t start_ns, uint64_t end_ns)
{
	event.start_ns = start_ns;
	event.end_ns = end_ns;
	write_packet(event);
	event.signalled.store(true);
	if (waits().waiting.load() != 0) {
		std::lock_guard<std::mutex> guard(waits().lock);
		waits().changed.notify_all();
	}
	poke_engines();
}

void reset_event(EventState &event)
{
	event.signalled.store(false);
	if (event.packet != nullptr)
		memset(event.packet, 0xff, 16);
}

bool wait_event(const EventState &event, uint64_t timeout)
{
	if (event.signalled.load() || timeout == 0)
		return event.signalled.load();
	uint64_t now = now_ns();
	uint64_t end = timeout > UINT64_MAX / 2 - now ? UINT64_MAX / 2 : now + timeout;
	if (config.spin) {
		while (!event.signalled.load() && now_ns() < end)
			__builtin_ia32_pause();
		return event.signalled.load();
	}
	auto deadline = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(end));
	std::unique_lock<std::mutex> guard(waits().lock);
	waits().waiting.fetch_add(1);
	waits().changed.wait_until(guard, deadline, [&] { return event.signalled.load(); });
	waits().waiting.fetch_sub(1);
	return event.signalled.load();
}

Engine &engine_of(uint32_t device, int32_t sub, uint32_t ordinal, uint32_t index)
{
	std::lock_guard<std::mutex> guard(engines().lock);
	for (Engine *e : engines().all)
		if (e->device == device && e->sub == sub && e->ordinal == ordinal &&
		    e->index == index)
			return *e;
	engines().all.push_back(new Engine(device, sub, ordinal, index));
	return *engines().all.back();
}

std::vector<Engine *> engines_of(uint32_t device)
{
	std::lock_guard<std::mutex> guard(engines().lock);
	std::vector<Engine *> out;
	for (Engine *e : engines().all)
		if (e->device == device)
			out.push_back(e);
	return out;
}

void stop_engines()
{
	for (Engine *engine : all_engines())
		engine->stop();
}

void engines_before_fork()
{
	engines().lock.lock();
	for (Engine *engine : engines().all)
		engine->before_fork();
}

void engines_after_fork(bool child)
{
	for (Engine *engine : engines().all)
		engine->after_fork(child);
	engines().lock.unlock();
	if (child) {
		held_streams = 0;
		waits().waiting = 0;
		new (&waits().lock) std::mutex;
		new (&waits().changed) std::condition_variable;
	}
}

} // namespace vze
