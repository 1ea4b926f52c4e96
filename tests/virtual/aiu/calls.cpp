/* API calls as the truth file has them, and where activity records come from. */
#include "vaiu.hpp"

#include <unistd.h>

namespace vaiu {

static std::atomic<uint32_t> ids{0};
static std::atomic<uint32_t> wanted_kinds{0};
static std::atomic<Sink> sink{nullptr};
static std::atomic<void (*)(const char *)> hook{nullptr};
static thread_local Call *innermost = nullptr;

uint32_t next_id() { return ++ids; }

void set_sink(Sink to, uint32_t kinds)
{
	sink = to;
	wanted_kinds = kinds;
}

bool wanted(Kind kind) { return wanted_kinds.load(std::memory_order_relaxed) >> kind & 1; }

void report(const Activity &activity)
{
	Sink to = sink.load();
	if (to && wanted(activity.kind))
		to(activity);
}

Call::Call(const char *function, uint32_t cbid)
    : function_(function), parent_(innermost), cbid_(cbid), id_(next_id()), correlation_(id_),
      start_(now_ns())
{
	innermost = this;
}

void Call::enter()
{
	if (auto call = hook.load(std::memory_order_relaxed))
		call(function_);
}

Call &Call::arg(const char *name, uint64_t value)
{
	if (truth_on()) {
		Line line("");
		/* Only the member, without what a whole line has around it. */
		std::string text = line.number(name, value).finish();
		args_ += text.substr(7, text.size() - 9);
	}
	return *this;
}

Call &Call::text(const char *name, std::string_view value)
{
	if (truth_on()) {
		Line line("");
		std::string text = line.text(name, value).finish();
		args_ += text.substr(7, text.size() - 9);
	}
	return *this;
}

void Call::tell(const char *how, uint64_t result)
{
	told_ = true;
	uint64_t end = now_ns();
	if (cbid_ && !*how && wanted(RUNTIME)) {
		Activity a;
		a.kind = RUNTIME;
		a.what = cbid_;
		a.start = start_;
		a.end = end;
		a.pid = uint32_t(getpid());
		a.tid = thread_id();
		a.correlation = correlation_;
		a.bytes = data_;
		report(a);
	}
	if (!truth_on())
		return;
	Line line("call");
	line.number("id", id_).number("parent", parent_ ? parent_->id_ : 0);
	line.text("fn", function_).number("tid", thread_id());
	line.number("t0", start_).number("t1", end);
	if (!args_.empty())
		line.raw("args", "{" + args_.substr(1) + "}");
	if (*how)
		line.text("left", how);
	else
		line.number("ret", result);
	truth(line.finish());
}

int Call::done(int result)
{
	tell("", uint64_t(int64_t(result)));
	return result;
}

void *Call::done(void *result)
{
	tell("", reinterpret_cast<uint64_t>(result));
	return result;
}

Call::~Call()
{
	innermost = parent_;
	if (!told_)
		tell("unwound", 0);
}

void Call::abandon_all(const char *how)
{
	while (innermost) {
		Call *call = innermost;
		innermost = call->parent_;
		if (!call->told_)
			call->tell(how, 0);
	}
}

} // namespace vaiu

extern "C" void vaiu_set_hook(void (*to)(const char *)) { vaiu::hook = to; }
extern "C" void vaiu_abandon_calls(void) { vaiu::Call::abandon_all("longjmp"); }
