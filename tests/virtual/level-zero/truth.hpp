/*
 * The truth file: JSON lines, one per call and one per execution on a device.
 *
 * Every thread fills a buffer of its own and writes whole lines to a file
 * opened for appending. What is left is written when the thread or the process
 * ends, before fork and by vze_flush. After its end a thread, and with it the
 * process, may still write lines.
 */
#ifndef VZE_TRUTH_HPP
#define VZE_TRUTH_HPP

#include "config.hpp"

#include <atomic>
#include <cstdint>
#include <string_view>

namespace vze {

/* Opens the file and arranges the final flush. */
void truth_open();

/* Writes out the buffers of all threads, and the counts in TruthMode::Count. */
void truth_flush();

/* Around fork: nothing is written twice, locks are free in the child. */
void truth_before_fork();
void truth_after_fork(bool child);

/* Process and thread id, kept per thread. */
uint32_t process_id();
uint32_t thread_id();

/* The next sequence number of this process. */
uint64_t next_seq();

/* How often something happened, reported when only counts are kept. The name
 * outlives the process's last flush. */
struct Counter {
	const char *kind;
	const char *name;
	std::atomic<uint64_t> n{0};
	/* How many of them the truth file has. */
	std::atomic<uint64_t> told{0};
	std::atomic<bool> listed{false};
	Counter *next = nullptr;

	constexpr Counter(const char *k, const char *s) : kind(k), name(s) {}
	void add();
};

/* Total of the counters of this name. */
uint64_t counted(const char *name);

/* One line under construction; it is written when this is destroyed. It holds
 * the thread's buffer: build it without calling anything in between. */
class Line {
      public:
	/* {"pid":P,"tid":T,"KIND":"NAME" */
	Line(const char *kind, std::string_view name);
	~Line();
	Line(const Line &) = delete;
	Line &operator=(const Line &) = delete;

	Line &number(const char *key, uint64_t value);
	Line &signed_number(const char *key, int64_t value);
	Line &text(const char *key, std::string_view value);
	Line &triple(const char *key, uint64_t a, uint64_t b, uint64_t c);
	/* Opens and closes an array of objects or numbers, and one element. */
	Line &open(const char *key);
	Line &element(std::string_view name, uint64_t a, std::string_view what, uint64_t b);
	Line &element(uint64_t a, uint64_t b, uint64_t c, std::string_view what, uint64_t d,
		      uint64_t e);
	Line &close();

      private:
	struct Buffer *buffer_;
	bool first_ = true;
};

} // namespace vze

#endif
