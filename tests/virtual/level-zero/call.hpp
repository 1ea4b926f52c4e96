/*
 * One API call: its line in the truth file, the test hook that may run inside,
 * and the tests of the pointers it was given.
 */
#ifndef VZE_CALL_HPP
#define VZE_CALL_HPP

#include "clock.hpp"
#include "truth.hpp"
#include "vze.hpp"

#include <memory>
#include <string>

namespace vze {

/* Hooks set and not yet run, in all threads. */
extern std::atomic<uint32_t> hooks_armed;

/* Number of this thread's latest call. */
extern thread_local uint64_t last_seq;

/* Whether this thread's hook is for this function. */
bool hook_matches(const char *function);
/* Takes the hook and runs it. */
void hook_run();

/* One thing to say about a call. */
struct Field {
	enum class Kind { Number, Text, Triple };
	Kind kind;
	const char *key;
	uint64_t a = 0, b = 0, c = 0;
	std::string_view text{};
};

class Call {
      public:
	explicit Call(Counter &counter) : counter_(counter)
	{
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_);
		last_seq = seq = next_seq();
		counter_.add();
		if (config.truth == TruthMode::Full)
			t0_ = now_ns();
		if (hooks_armed.load(std::memory_order_relaxed) != 0 && hook_matches(counter_.name))
			hook();
	}
	~Call()
	{
		if (config.truth == TruthMode::Full && !written_)
			write();
		pthread_setcancelstate(cancel_, nullptr);
	}
	Call(const Call &) = delete;
	Call &operator=(const Call &) = delete;

	/* `return call.end(RESULT)` ends every API function. */
	ze_result_t end(ze_result_t result)
	{
		result_ = result;
		ended_ = true;
		return result;
	}
	Call &with(const char *key, uint64_t value)
	{
		return add({Field::Kind::Number, key, value});
	}
	Call &with(const char *key, const void *handle)
	{
		return with(key, reinterpret_cast<uint64_t>(handle));
	}
	/* The text must live as long as the call. */
	Call &with_text(const char *key, std::string_view value)
	{
		return add({Field::Kind::Text, key, 0, 0, 0, value});
	}
	Call &with_triple(const char *key, uint64_t a, uint64_t b, uint64_t c)
	{
		return add({Field::Kind::Triple, key, a, b, c});
	}
	/* What follows is not part of the line any more. */
	void say_no_more() { silent_ = true; }
	/* Keeps something alive until the line is written. */
	void keep(std::shared_ptr<const void> what) { kept_ = std::move(what); }

	/* Its number in this process, in order of entry. */
	uint64_t seq;

      private:
	Call &add(const Field &field)
	{
		if (n_ < MAX_FIELDS && !silent_)
			fields_[n_++] = field;
		return *this;
	}
	void hook();
	void write();

	static constexpr size_t MAX_FIELDS = 12;
	Counter &counter_;
	int cancel_ = PTHREAD_CANCEL_ENABLE;
	uint64_t t0_ = 0;
	ze_result_t result_ = ZE_RESULT_SUCCESS;
	bool ended_ = false;
	bool written_ = false;
	bool silent_ = false;
	size_t n_ = 0;
	Field fields_[MAX_FIELDS];
	std::shared_ptr<const void> kept_;
};

/* Begins every API function that the truth file lists. */
#define VZE_CALL(function)                                                                         \
	static ::vze::Counter vze_counter{"count", #function};                                     \
	::vze::Call call(vze_counter)

/* Whether n bytes at p can be read (written). Without VZE_CHECKED only null
 * fails: a real driver does no more. */
bool readable(const void *p, size_t n);
bool writable(void *p, size_t n);

/* A zero-terminated text of the program, at most 64 KiB; false when it is not
 * readable or longer. */
bool read_text(const char *p, std::string &out);

/* Copies memory of the program however bad the pointers are; false when some of
 * it could not be copied. */
bool careful_copy(void *to, const void *from, size_t n);

} // namespace vze

#endif
