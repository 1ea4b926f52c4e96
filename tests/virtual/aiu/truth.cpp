/*
 * The truth file: what really happened, written by who did it. Each thread fills
 * a buffer of whole lines, written with one system call when it is full, so
 * that lines of several threads never mix.
 */
#include "vaiu.hpp"

#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <unistd.h>

namespace vaiu {

Line::Line(const char *type)
{
	text_.reserve(256);
	text_ = "{\"t\":\"";
	text_ += type;
	text_ += '"';
}

void Line::key(const char *name)
{
	text_ += ",\"";
	text_ += name;
	text_ += "\":";
}

Line &Line::number(const char *name, uint64_t value)
{
	char digits[24];
	key(name);
	text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
	return *this;
}

Line &Line::real(const char *name, double value)
{
	char digits[40];
	snprintf(digits, sizeof digits, "%.17g", value);
	return raw(name, digits);
}

Line &Line::text(const char *name, std::string_view value)
{
	key(name);
	text_ += '"';
	for (unsigned char c : value) {
		char escaped[8];
		if (c == '"' || c == '\\') {
			text_ += '\\';
			text_ += char(c);
		} else if (c < 0x20) {
			snprintf(escaped, sizeof escaped, "\\u%04x", c);
			text_ += escaped;
		} else {
			text_ += char(c);
		}
	}
	text_ += '"';
	return *this;
}

Line &Line::raw(const char *name, std::string_view json)
{
	key(name);
	text_ += json;
	return *this;
}

Line &Line::numbers(const char *name, const uint64_t *values, size_t count)
{
	std::string json = "[";
	for (size_t i = 0; i < count; i++) {
		if (i)
			json += ',';
		json += std::to_string(values[i]);
	}
	return raw(name, json + "]");
}

std::string Line::finish()
{
	text_ += "}\n";
	return std::move(text_);
}

constexpr size_t FULL = 64 * 1024;

struct Buffer {
	std::mutex lock;
	std::string lines;
};

struct File {
	std::mutex lock;
	std::vector<std::shared_ptr<Buffer>> buffers;
	int fd = -1;
	pid_t owner = 0;
};

/* Never destroyed: threads may still write something while the program ends. */
static File &file()
{
	static File *one = new File;
	return *one;
}

static void describe_process(std::string &out)
{
	const Config &c = config();
	Line line("process");
	line.number("pid", getpid()).number("rank", c.rank).number("world", c.world_size);
	line.text("layout", c.layout).number("cycles", c.cycles);
	line.number("epoch_offset", epoch_offset_ns()).number("start", now_ns());
	out += line.finish();
}

static void write_all(int fd, const std::string &text)
{
	for (size_t done = 0; done < text.size();) {
		ssize_t n = write(fd, text.data() + done, text.size() - done);
		if (n <= 0)
			return;
		done += size_t(n);
	}
}

/* With file().lock held. */
static int opened()
{
	File &f = file();
	if (f.owner != getpid()) {
		f.owner = getpid();
		f.fd = open(config().truth.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		std::string first;
		describe_process(first);
		if (f.fd >= 0)
			write_all(f.fd, first);
	}
	return f.fd;
}

static void write_out(Buffer &buffer)
{
	std::string lines;
	lines.swap(buffer.lines);
	std::lock_guard<std::mutex> guard(file().lock);
	int fd = opened();
	if (fd >= 0)
		write_all(fd, lines);
}

/* The calling thread's buffer; written out when the thread ends. */
struct Owner {
	std::shared_ptr<Buffer> buffer = std::make_shared<Buffer>();
	Owner()
	{
		std::lock_guard<std::mutex> guard(file().lock);
		file().buffers.push_back(buffer);
	}
	~Owner()
	{
		{
			std::lock_guard<std::mutex> guard(buffer->lock);
			write_out(*buffer);
		}
		std::lock_guard<std::mutex> guard(file().lock);
		auto &all = file().buffers;
		for (auto &one : all)
			if (one == buffer) {
				std::swap(one, all.back());
				all.pop_back();
				break;
			}
	}
};

static Owner &mine()
{
	static thread_local Owner owner;
	return owner;
}

bool truth_on() { return !config().truth.empty(); }

void truth(std::string &&lines)
{
	if (!truth_on())
		return;
	Buffer &buffer = *mine().buffer;
	std::lock_guard<std::mutex> guard(buffer.lock);
	buffer.lines += lines;
	if (buffer.lines.size() >= FULL || config().truth_sync)
		write_out(buffer);
}

void truth_flush()
{
	if (!truth_on())
		return;
	std::vector<std::shared_ptr<Buffer>> all;
	{
		std::lock_guard<std::mutex> guard(file().lock);
		all = file().buffers;
	}
	for (auto &buffer : all) {
		std::lock_guard<std::mutex> guard(buffer->lock);
		write_out(*buffer);
	}
}

/* What the parent had not written yet is the parent's to write. */
static void forget_parent()
{
	File &f = file();
	new (&f.lock) std::mutex;
	for (auto &buffer : f.buffers) {
		new (&buffer->lock) std::mutex;
		buffer->lines.clear();
	}
}

__attribute__((constructor)) static void at_start()
{
	pthread_atfork(nullptr, nullptr, forget_parent);
}

__attribute__((destructor)) static void at_end() { truth_flush(); }

} // namespace vaiu

extern "C" void vaiu_flush_truth(void) { vaiu::truth_flush(); }
