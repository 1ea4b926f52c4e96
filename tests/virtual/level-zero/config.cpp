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

void stalls()
{
	const char *text = getenv("VZE_STALLS");
	if (text != nullptr)
		config.stall_path = strdup(text);
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
	unsigned64("VZE_ISA_BASE", config.isa_base);
	truth();
	stalls();
}

std::string expand_path(const char *path, uint32_t device)
{
	std::string out;
	for (; *path != '\0'; path++) {
		if (path[0] == '%' && (path[1] == 'p' || path[1] == 'd')) {
			path++;
			out += std::to_string(*path == 'p' ? static_cast<uint32_t>(getpid()) : device);
		} else {
			out += *path;
		}
	}
	return out;
}

} // namespace vze
