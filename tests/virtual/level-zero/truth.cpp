#include "truth.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace vze {

/* A thread's buffer. Its lock is taken by the thread itself and by flushes. */
struct Buffer {
	std::mutex lock;
	std::string text;
};

namespace {

constexpr size_t FLUSH_AT = 1 << 16;

/* Never destroyed: threads may still run while the process exits. */
struct State {
	std::mutex lock;
	/* For threads whose own buffer is gone: what a process still does while it ends. */
	Buffer *last = new Buffer;
	std::vector<Buffer *> buffers{last};
	int fd = -1;
	uint64_t failed = 0;
};

State &state()
{
	static State *s = new State;
	return *s;
}

std::atomic<uint64_t> sequence{0};
std::atomic<Counter *> counters{nullptr};
std::atomic<uint32_t> pid_cache{0};
thread_local uint32_t tid_cache = 0;

/* Writes and empties a buffer whose lock is held. */
void drain(Buffer &buffer)
{
	const char *at = buffer.text.data();
	size_t left = buffer.text.size();
	int fd = state().fd;
	while (left > 0 && fd >= 0) {
		ssize_t n = write(fd, at, left);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			/* Tests must not pass on half a truth. */
			perror("virtual Level Zero driver: writing the truth file");
			_exit(98);
		}
		at += n;
		left -= static_cast<size_t>(n);
	}
	buffer.text.clear();
}

/* Set when this thread's buffer is gone; without a destructor, so that it stays. */
thread_local bool buffer_gone = false;

/* Registers with the state and leaves it, flushed, when its thread ends. */
struct Owner {
	Buffer *buffer = new Buffer;
	Owner()
	{
		buffer->text.reserve(FLUSH_AT + 4096);
		std::lock_guard<std::mutex> guard(state().lock);
		state().buffers.push_back(buffer);
	}
	~Owner()
	{
		buffer_gone = true;
		std::lock_guard<std::mutex> guard(state().lock);
		auto &all = state().buffers;
		for (size_t i = 0; i < all.size(); i++) {
			if (all[i] == buffer) {
				all[i] = all.back();
				all.pop_back();
				break;
			}
		}
		{
			std::lock_guard<std::mutex> own(buffer->lock);
			drain(*buffer);
		}
		delete buffer;
	}
};

Buffer &own_buffer()
{
	if (buffer_gone)
		return *state().last;
	thread_local Owner owner;
	return *owner.buffer;
}

void put_number(std::string &out, uint64_t value)
{
	char digits[20];
	size_t n = sizeof(digits);
	do {
		digits[--n] = static_cast<char>('0' + value % 10);
		value /= 10;
	} while (value != 0);
	out.append(digits + n, sizeof(digits) - n);
}

void put_text(std::string &out, std::string_view value)
{
	out += '"';
	for (char c : value) {
		auto byte = static_cast<unsigned char>(c);
		if (c == '"' || c == '\\') {
			out += '\\';
			out += c;
		} else if (byte < 0x20 || byte >= 0x7f) {
			char escape[8];
			snprintf(escape, sizeof(escape), "\\u%04x", byte);
			out += escape;
		} else {
			out += c;
		}
	}
	out += '"';
}

void put_counts()
{
	for (Counter *c = counters.load(); c != nullptr; c = c->next) {
		uint64_t n = c->n.load();
		uint64_t told = c->told.exchange(n);
		if (n > told)
			Line(c->kind, c->name).number("n", n - told);
	}
}

} // namespace

void truth_open()
{
	if (config.truth == TruthMode::Off)
		return;
	std::string path = expand_path(config.truth_path, 0);
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
	state().fd = open(path.c_str(), flags, 0644);
	if (state().fd < 0) {
		perror(("virtual Level Zero driver: " + path).c_str());
		_exit(98);
	}
}

void truth_flush()
{
	if (config.truth == TruthMode::Count)
		put_counts();
	std::lock_guard<std::mutex> guard(state().lock);
	for (Buffer *buffer : state().buffers) {
		std::lock_guard<std::mutex> own(buffer->lock);
		drain(*buffer);
	}
}

void truth_before_fork()
{
	state().lock.lock();
	for (Buffer *buffer : state().buffers) {
		buffer->lock.lock();
		drain(*buffer);
	}
}

void truth_after_fork(bool child)
{
	for (Buffer *buffer : state().buffers)
		buffer->lock.unlock();
	state().lock.unlock();
	if (!child)
		return;
	pid_cache = 0;
	tid_cache = 0;
	for (Counter *c = counters.load(); c != nullptr; c = c->next)
		c->n = c->told = 0;
	if (state().fd >= 0) {
		close(state().fd);
		truth_open();
	}
}

uint32_t process_id()
{
	uint32_t pid = pid_cache.load(std::memory_order_relaxed);
	if (pid == 0) {
		pid = static_cast<uint32_t>(getpid());
		pid_cache.store(pid, std::memory_order_relaxed);
	}
	return pid;
}

uint32_t thread_id()
{
	if (tid_cache == 0)
		tid_cache = static_cast<uint32_t>(syscall(SYS_gettid));
	return tid_cache;
}

uint64_t next_seq()
{
	return sequence.fetch_add(1, std::memory_order_relaxed) + 1;
}

void Counter::add()
{
	n.fetch_add(1, std::memory_order_relaxed);
	if (!listed.load(std::memory_order_relaxed) && !listed.exchange(true)) {
		next = counters.load();
		while (!counters.compare_exchange_weak(next, this))
			;
	}
}

uint64_t counted(const char *name)
{
	uint64_t sum = 0;
	for (Counter *c = counters.load(); c != nullptr; c = c->next)
		if (strcmp(c->name, name) == 0)
			sum += c->n.load();
	return sum;
}

Line::Line(const char *kind, std::string_view name) : buffer_(&own_buffer())
{
	buffer_->lock.lock();
	auto &out = buffer_->text;
	out += "{\"pid\":";
	put_number(out, process_id());
	number("tid", thread_id());
	text(kind, name);
}

Line::~Line()
{
	buffer_->text += "}\n";
	if (buffer_->text.size() >= FLUSH_AT || config.truth_flush)
		drain(*buffer_);
	buffer_->lock.unlock();
}

Line &Line::number(const char *key, uint64_t value)
{
	auto &out = buffer_->text;
	out += ",\"";
	out += key;
	out += "\":";
	put_number(out, value);
	return *this;
}

Line &Line::signed_number(const char *key, int64_t value)
{
	if (value >= 0)
		return number(key, static_cast<uint64_t>(value));
	auto &out = buffer_->text;
	out += ",\"";
	out += key;
	out += "\":-";
	put_number(out, 0 - static_cast<uint64_t>(value));
	return *this;
}

Line &Line::text(const char *key, std::string_view value)
{
	auto &out = buffer_->text;
	out += ",\"";
	out += key;
	out += "\":";
	put_text(out, value);
	return *this;
}

Line &Line::triple(const char *key, uint64_t a, uint64_t b, uint64_t c)
{
	number(key, 0);
	auto &out = buffer_->text;
	out.pop_back();
	out += '[';
	put_number(out, a);
	out += ',';
	put_number(out, b);
	out += ',';
	put_number(out, c);
	out += ']';
	return *this;
}

Line &Line::open(const char *key)
{
	auto &out = buffer_->text;
	out += ",\"";
	out += key;
	out += "\":[";
	first_ = true;
	return *this;
}

Line &Line::element(std::string_view name, uint64_t a, std::string_view what, uint64_t b)
{
	auto &out = buffer_->text;
	out += first_ ? "[" : ",[";
	first_ = false;
	put_text(out, name);
	out += ',';
	put_number(out, a);
	out += ',';
	put_text(out, what);
	out += ',';
	put_number(out, b);
	out += ']';
	return *this;
}

Line &Line::element(uint64_t a, uint64_t b, uint64_t c, std::string_view what, uint64_t d,
		    uint64_t e)
{
	auto &out = buffer_->text;
	const char *before = first_ ? "[" : ",[";
	for (uint64_t n : {a, b, c}) {
		out += before;
		put_number(out, n);
		before = ",";
	}
	first_ = false;
	out += ',';
	put_text(out, what);
	for (uint64_t n : {d, e}) {
		out += ',';
		put_number(out, n);
	}
	out += ']';
	return *this;
}

Line &Line::close()
{
	buffer_->text += ']';
	return *this;
}

} // namespace vze
