/* The activity API: buffers of the program's, filled with records. */
#include "aiupti.hpp"
#include "layouts.hpp"

#include <cstring>
#include <mutex>
#include <unistd.h>

namespace {

using vaiu::Activity;
using vaiu::Call;
using vaiu::Line;

struct State {
	std::recursive_mutex lock;
	AIUpti_BufferRequested *requested = nullptr;
	AIUpti_BufferCompleted *completed = nullptr;
	uint32_t kinds = 0;
	uint8_t *buffer = nullptr;
	size_t size = 0, valid = 0, records = 0, max_records = 0;
	uint64_t number = 0;
	std::string told;
	std::atomic<size_t> dropped{0};
};

/* Never destroyed: the device thread may still report while the program ends. */
State &state()
{
	static State *one = new State;
	return *one;
}

/* Hands the current buffer to the program. With the lock held. */
void complete()
{
	State &s = state();
	if (!s.buffer)
		return;
	uint8_t *buffer = s.buffer;
	s.buffer = nullptr;
	if (vaiu::truth_on()) {
		Line line("buffer");
		line.number("number", s.number);
		line.number("address", reinterpret_cast<uint64_t>(buffer));
		line.number("size", s.size).number("valid", s.valid).number("records", s.records);
		s.told += line.finish();
		vaiu::truth(std::move(s.told));
		s.told.clear();
	}
	if (s.completed)
		s.completed(buffer, s.size, s.valid);
}

/* Provides a buffer with room for `bytes`, if the program gives one. */
bool provide(size_t bytes)
{
	State &s = state();
	bool full = s.buffer && (s.size - s.valid < bytes ||
				 (s.max_records && s.records >= s.max_records));
	if (full)
		complete();
	if (!s.buffer && s.requested) {
		s.size = s.max_records = 0;
		s.valid = s.records = 0;
		s.requested(&s.buffer, &s.size, &s.max_records);
		s.number += s.buffer != nullptr;
	}
	return s.buffer && s.size - s.valid >= bytes;
}

std::string describe(const Activity &a, const char *type, uint64_t buffer, size_t bytes)
{
	uint64_t offset = vaiu::epoch_offset_ns();
	Line line(type);
	line.number("buffer", buffer);
	line.number("kind", a.kind).number("what", a.what).number("bytes", bytes);
	line.number("device", a.device).number("context", a.context).number("stream", a.stream);
	line.number("corr", a.correlation).number("start", a.start + offset);
	line.number("end", a.end + offset).number("amount", a.bytes);
	line.number("address", a.address).number("pid", a.pid).number("tid", a.tid);
	line.text("name", a.name).numbers("cycles", a.cycles, 5);
	line.number("queued", a.queued + offset).number("submitted", a.submitted + offset);
	return line.finish();
}

void sink(const Activity &a)
{
	State &s = state();
	std::vector<uint8_t> bytes = vaiu::layout_encode(a);
	std::lock_guard<std::recursive_mutex> guard(s.lock);
	bool fits = provide(bytes.size());
	if (fits) {
		memcpy(s.buffer + s.valid, bytes.data(), bytes.size());
		s.valid += bytes.size();
		s.records++;
	} else {
		s.dropped++;
	}
	if (vaiu::truth_on()) {
		std::string line = describe(a, fits ? "rec" : "dropped",
					    fits ? s.number : 0, bytes.size());
		if (fits)
			s.told += line;
		else
			vaiu::truth(std::move(line));
	}
}

void apply()
{
	vaiu::set_sink(sink, state().kinds);
}

AIUpti_ResultTypes result(Call &call, AIUpti_ResultTypes value)
{
	call.done(int(value));
	return value;
}

/* Where this thread is in the buffer that it walks. */
thread_local struct {
	uint8_t *buffer;
	size_t at;
} walk;

} // namespace

AIUpti_ResultTypes aiuptiActivityRegisterCallbacks(AIUpti_BufferRequested *requested,
						   AIUpti_BufferCompleted *completed)
{
	Call call("aiuptiActivityRegisterCallbacks");
	call.arg("requested", reinterpret_cast<uint64_t>(requested));
	call.arg("completed", reinterpret_cast<uint64_t>(completed)).enter();
	if (!requested || !completed || !vaiu::layout_known(vaiu::config().layout))
		return result(call, AIUPTI_ERROR_INVALID);
	std::lock_guard<std::recursive_mutex> guard(state().lock);
	state().requested = requested;
	state().completed = completed;
	return result(call, AIUPTI_SUCCESS);
}

static AIUpti_ResultTypes change(const char *function, AIUpti_ActivityKind kind, bool on)
{
	Call call(function);
	call.arg("kind", uint64_t(kind)).enter();
	if (kind <= AIUPTI_ACTIVITY_KIND_INVALID || kind > AIUPTI_ACTIVITY_KIND_METRIC)
		return result(call, AIUPTI_ERROR_INVALID);
	std::lock_guard<std::recursive_mutex> guard(state().lock);
	uint32_t bit = 1u << kind;
	state().kinds = on ? state().kinds | bit : state().kinds & ~bit;
	apply();
	return result(call, AIUPTI_SUCCESS);
}

AIUpti_ResultTypes aiuptiActivityEnable(AIUpti_ActivityKind kind)
{
	return change("aiuptiActivityEnable", kind, true);
}

AIUpti_ResultTypes aiuptiActivityDisable(AIUpti_ActivityKind kind)
{
	return change("aiuptiActivityDisable", kind, false);
}

AIUpti_ResultTypes aiuptiFlushAllActivities()
{
	Call call("aiuptiFlushAllActivities");
	call.enter();
	std::lock_guard<std::recursive_mutex> guard(state().lock);
	complete();
	return result(call, AIUPTI_SUCCESS);
}

AIUpti_ResultTypes aiuptiActivityGetNextRecord(uint8_t *buffer, size_t valid,
					       AIUpti_Activity **record)
{
	Call call("aiuptiActivityGetNextRecord");
	call.arg("buffer", reinterpret_cast<uint64_t>(buffer)).arg("valid", valid).enter();
	if (!buffer || !record)
		return result(call, AIUPTI_ERROR_INVALID);
	if (walk.buffer != buffer)
		walk = {buffer, 0};
	if (*record) {
		walk.at = size_t(reinterpret_cast<uint8_t *>(*record) - buffer);
		walk.at += vaiu::layout_size((*record)->kind);
	}
	size_t bytes = walk.at < valid ? vaiu::layout_size(buffer[walk.at]) : 0;
	if (!bytes || valid - walk.at < bytes) {
		walk = {nullptr, 0};
		return result(call, AIUPTI_ERROR_END);
	}
	*record = reinterpret_cast<AIUpti_Activity *>(buffer + walk.at);
	call.arg("record", reinterpret_cast<uint64_t>(*record)).arg("kind", (*record)->kind);
	walk.at += bytes;
	return result(call, AIUPTI_SUCCESS);
}

AIUpti_ResultTypes aiuptiActivityGetNumDroppedRecords(size_t *dropped)
{
	Call call("aiuptiActivityGetNumDroppedRecords");
	call.enter();
	if (!dropped)
		return result(call, AIUPTI_ERROR_INVALID);
	*dropped = state().dropped.exchange(0);
	return result(call, AIUPTI_SUCCESS);
}
