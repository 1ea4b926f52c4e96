#include "call.hpp"

#include <algorithm>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>

namespace vze {

std::atomic<uint32_t> hooks_armed{0};
thread_local uint64_t last_seq = 0;

namespace {

struct Hook {
	std::string function;
	void (*callback)(void *) = nullptr;
	void *argument = nullptr;
	~Hook()
	{
		if (callback != nullptr)
			hooks_armed.fetch_sub(1);
	}
};

thread_local Hook hook;

constexpr size_t MAX_TEXT = 1 << 16;

bool transfer(bool write, void *local, const void *remote, size_t n)
{
	auto *at = static_cast<char *>(local);
	auto *there = static_cast<const char *>(remote);
	while (n > 0) {
		struct iovec here = {at, n};
		struct iovec other = {const_cast<char *>(there), n};
		pid_t self = static_cast<pid_t>(process_id());
		ssize_t done = write ? process_vm_writev(self, &here, 1, &other, 1, 0)
				     : process_vm_readv(self, &here, 1, &other, 1, 0);
		if (done <= 0)
			return false;
		at += done;
		there += done;
		n -= static_cast<size_t>(done);
	}
	return true;
}

/* Calls f(address, size) for pieces that do not cross a page. */
template <typename F> bool by_page(uint64_t at, size_t n, F f)
{
	if (at + n < at)
		return false;
	while (n > 0) {
		size_t piece = std::min<size_t>(n, 4096 - at % 4096);
		if (!f(at, piece))
			return false;
		at += piece;
		n -= piece;
	}
	return true;
}

} // namespace

bool hook_matches(const char *function)
{
	return hook.callback != nullptr && hook.function == function;
}

void hook_run()
{
	auto callback = hook.callback;
	void *argument = hook.argument;
	hook.callback = nullptr;
	hooks_armed.fetch_sub(1);
	callback(argument);
}

/* The line comes first, because the callback may never return here. */
void Call::hook()
{
	if (config.truth == TruthMode::Full) {
		with("hooked", 1);
		write();
		written_ = true;
	}
	pthread_setcancelstate(cancel_, nullptr);
	hook_run();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
}

void Call::write()
{
	uint64_t t1 = now_ns();
	Line line("call", counter_.name);
	line.number("seq", seq).number("t0", t0_).number("t1", t1);
	for (size_t i = 0; i < n_; i++) {
		const Field &f = fields_[i];
		switch (f.kind) {
		case Field::Kind::Number:
			line.number(f.key, f.a);
			break;
		case Field::Kind::Text:
			line.text(f.key, f.text);
			break;
		case Field::Kind::Triple:
			line.triple(f.key, f.a, f.b, f.c);
			break;
		}
	}
	if (ended_)
		line.number("result", static_cast<uint32_t>(result_));
}

bool readable(const void *p, size_t n)
{
	if (p == nullptr)
		return false;
	if (!config.checked)
		return true;
	return by_page(reinterpret_cast<uint64_t>(p), n, [](uint64_t at, size_t) {
		char byte;
		return transfer(false, &byte, reinterpret_cast<const void *>(at), 1);
	});
}

bool writable(void *p, size_t n)
{
	if (p == nullptr)
		return false;
	if (!config.checked)
		return true;
	return by_page(reinterpret_cast<uint64_t>(p), n, [](uint64_t at, size_t) {
		char byte;
		auto *there = reinterpret_cast<const void *>(at);
		return transfer(false, &byte, there, 1) && transfer(true, &byte, there, 1);
	});
}

bool read_text(const char *p, std::string &out)
{
	out.clear();
	if (p == nullptr)
		return false;
	if (!config.checked) {
		size_t n = strnlen(p, MAX_TEXT);
		out.assign(p, n);
		return n < MAX_TEXT;
	}
	bool ended = false;
	auto at = reinterpret_cast<uint64_t>(p);
	if (at + MAX_TEXT < at)
		return false;
	by_page(at, MAX_TEXT, [&](uint64_t from, size_t n) {
		char piece[4096];
		if (!transfer(false, piece, reinterpret_cast<const void *>(from), n))
			return false;
		size_t length = strnlen(piece, n);
		out.append(piece, length);
		ended = length < n;
		return !ended;
	});
	return ended;
}

bool careful_copy(void *to, const void *from, size_t n)
{
	/* The kernel checks both sides. */
	return transfer(false, to, from, n);
}

} // namespace vze

void vze_hook_next(const char *function, void (*callback)(void *), void *argument)
{
	if (vze::hook.callback != nullptr)
		vze::hooks_armed.fetch_sub(1);
	vze::hook.callback = nullptr;
	if (function == nullptr || callback == nullptr)
		return;
	vze::hook.function = function;
	vze::hook.argument = argument;
	vze::hook.callback = callback;
	vze::hooks_armed.fetch_add(1);
}

void vze_flush(void)
{
	vze::truth_flush();
}

uint64_t vze_count(const char *function)
{
	return vze::counted(function);
}

uint64_t vze_last_seq(void)
{
	return vze::last_seq;
}
