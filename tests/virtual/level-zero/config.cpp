#include "config.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace vze {

/* Constant, so that it is there before anything runs. */
Config config;

namespace {

[[noreturn]] void refuse(const char *name, const char *text)
{
	fprintf(stderr, "virtual Level Zero driver: %s=%s makes no sense\n", name, text);
	_exit(99);
}

template <typename T> void number(const char *name, T &value, int64_t least, int64_t most)
{
	const char *text = getenv(name);
	if (text == nullptr)
		return;
	char *end = nullptr;
	errno = 0;
	long long n = strtoll(text, &end, 0);
	if (errno != 0 || end == text || *end != '\0' || n < least || n > most)
		refuse(name, text);
	value = static_cast<T>(n);
}

void unsigned64(const char *name, uint64_t &value)
{
	const char *text = getenv(name);
	if (text == nullptr)
		return;
	char *end = nullptr;
	errno = 0;
	unsigned long long n = strtoull(text, &end, 0);
	if (errno != 0 || end == text || *end != '\0')
		refuse(name, text);
	value = n;
}

void truth()
{
	const char *text = getenv("VZE_TRUTH");
	if (text == nullptr || *text == '\0')
		return;
	config.truth = TruthMode::Full;
	if (strncmp(text, "count:", 6) == 0) {
		config.truth = TruthMode::Count;
		text += 6;
	}
	config.truth_path = strdup(text);
}

void keep_text(const char *name, const char *&value)
{
	const char *text = getenv(name);
	if (text != nullptr)
		value = strdup(text);
}

void stalls()
{
	keep_text("VZE_STALLS", config.stall_path);
	keep_text("VZE_SCHEDULE", config.schedule_path);
	keep_text("VZE_DUMP", config.dump_path);
	const char *format = getenv("VZE_STALLS_FORMAT");
	if (format == nullptr || strcmp(format, "xe2") == 0)
		config.stall_format = StallFormat::Xe2;
	else if (strcmp(format, "pvc") == 0)
		config.stall_format = StallFormat::Pvc;
	else if (strcmp(format, "xe3p") == 0)
		config.stall_format = StallFormat::Xe3p;
	else
		refuse("VZE_STALLS_FORMAT", format);
}

} // namespace

void read_config()
{
	const int64_t any = INT64_MAX;
	number("VZE_DEVICES", config.devices, 1, 64);
	number("VZE_SUBDEVICES", config.subdevices, 0, 8);
	number("VZE_CLOCK_HZ", config.clock_hz, 1000, 10000000000);
	number("VZE_CLOCK_PPB", config.clock_ppb, -100000000, 100000000);
	unsigned64("VZE_CLOCK_OFFSET", config.clock_offset);
	number("VZE_CLOCK_BITS", config.clock_bits, 8, 64);
	number("VZE_TIMESTAMP_BITS", config.timestamp_bits, 8, 64);
	number("VZE_KERNEL_NS", config.kernel_ns, 0, any);
	number("VZE_COPY_RATE", config.copy_rate, 1, any);
	number("VZE_LATENCY_NS", config.latency_ns, 0, 1000000000);
	number("VZE_GAP_NS", config.gap_ns, 0, 1000000000);
	number("VZE_LANES", config.lanes, 1, 64);
	number("VZE_NULL", config.null, 0, 1);
	number("VZE_CHECKED", config.checked, 0, 1);
	number("VZE_SPIN", config.spin, 0, 1);
	number("VZE_DISPATCH", config.dispatch, 0, 1);
	number("VZE_TRUTH_FLUSH", config.truth_flush, 0, 1);
	uint64_t window_ms = config.stall_window_ns / 1000000;
	number("VZE_STALLS_MS", window_ms, 1, 10000);
	config.stall_window_ns = window_ms * 1000000;
	number("VZE_GTS", config.gts, 0, 8);
	number("VZE_STALLS_FRAMED", config.stall_framed, 0, 1);
	number("VZE_STALLS_DROP", config.stall_drop, 0, 1000000);
	number("VZE_STALLS_EVERY", config.stall_every, 1, 1000000);
	unsigned64("VZE_ISA_BASE", config.isa_base);
	number("VZE_ISA_REUSE", config.isa_reuse, 0, 1);
	number("VZE_ISA_POOL", config.isa_pool, 0, 1);
	number("VZE_USDT", config.usdt, 0, 1);
	number("VZE_SUBMIT_EVERY", config.submit_every, 1, 1000000);
	number("VZE_SUBMIT_THREAD", config.submit_thread, 0, 1);
	keep_text("VZE_SUBMIT", config.submit_path);
	truth();
	stalls();
}

std::string expand_path(const char *path, uint32_t device, uint32_t gt)
{
	std::string out;
	for (; *path != '\0'; path++) {
		char what = path[0] == '%' ? path[1] : '\0';
		if (what == 'p')
			out += std::to_string(getpid());
		else if (what == 'd')
			out += std::to_string(device);
		else if (what == 'g')
			out += std::to_string(gt);
		else
			out += *path;
		if (what == 'p' || what == 'd' || what == 'g')
			path++;
	}
	return out;
}

} // namespace vze
