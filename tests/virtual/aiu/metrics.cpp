/*
 * The metrics file, in the format of the VF runtime: rewritten in place
 * through a mapping, its first byte '!' while that goes on.
 */
#include "vaiu.hpp"

#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace vaiu {

/* Samples of a metric in each interval. */
constexpr uint32_t SAMPLES = 4;
constexpr size_t FILE_BYTES = 4096;

struct Metric {
	uint32_t id;
	std::vector<uint64_t> values;
};

struct Section {
	uint32_t type;
	std::vector<Metric> metrics;
};

struct Writer {
	std::vector<uint8_t> out;
	void u32(uint32_t value) { put(&value, 4); }
	void u64(uint64_t value) { put(&value, 8); }
	void put(const void *data, size_t size)
	{
		auto from = static_cast<const uint8_t *>(data);
		out.insert(out.end(), from, from + size);
	}
};

static uint64_t epoch_ms() { return (now_ns() + epoch_offset_ns()) / 1000000; }

static std::vector<uint8_t> encode_section(const Section &s, uint32_t sequence)
{
	Writer w;
	size_t words = 0;
	for (auto &m : s.metrics)
		words += m.values.size();
	w.u32(s.type);
	w.u32(uint32_t(32 + s.metrics.size() * 8 + words * 8));
	w.u32(sequence);
	w.u32(uint32_t(s.metrics.size()));
	w.u64(epoch_ms());
	w.u32(uint32_t(config().metrics_ms));
	w.u32(0);
	for (auto &m : s.metrics) {
		w.u32(m.id);
		w.u32(uint32_t(m.values.size()));
	}
	for (auto &m : s.metrics)
		for (uint64_t value : m.values)
			w.u64(value);
	return w.out;
}

static std::vector<uint8_t> encode(const std::vector<Section> &sections, uint32_t sequence)
{
	std::vector<std::vector<uint8_t>> bodies;
	size_t size = 32 + sections.size() * 8;
	for (auto &s : sections) {
		bodies.push_back(encode_section(s, sequence));
		size += bodies.back().size();
	}
	Writer w;
	w.put("!iuM", 4);
	w.u32(uint32_t(size));
	w.put("\1\0\0\0", 4);
	w.u32(uint32_t(sections.size()));
	w.u64(epoch_ms());
	w.u64(0);
	for (size_t i = 0; i < sections.size(); i++) {
		w.u32(sections[i].type);
		w.u32(uint32_t(bodies[i].size()));
	}
	for (auto &body : bodies)
		w.put(body.data(), body.size());
	return w.out;
}

/* What the counters were at the last sample. */
struct Before {
	uint64_t values[7] = {};
};

static void sample(std::vector<Metric> &metrics, Before &before, uint64_t span_ns)
{
	Traffic &t = traffic();
	uint64_t now[7] = {t.read_memory, t.written_memory, t.from_host, t.to_host,
			   t.rdma_read,	  t.rdma_written,   t.busy_ns};
	uint64_t busy = (now[6] - before.values[6]) * 100 / (span_ns ? span_ns : 1);
	busy = busy > 100 ? 100 : busy;
	metrics[0].values.push_back(150 + busy * 4);  /* 15 W idle, 55 W busy */
	metrics[1].values.push_back(400 + busy);      /* 40 C idle, 50 C busy */
	for (int i = 0; i < 6; i++) {
		/* Whole KiB; the rest goes to the next sample. */
		uint64_t kib = (now[i] - before.values[i]) / 1024;
		metrics[size_t(2 + i)].values.push_back(kib);
		before.values[i] += kib * 1024;
	}
	before.values[6] = now[6];
}

static void tell(const std::vector<Section> &sections, uint32_t sequence)
{
	if (!truth_on())
		return;
	Line line("metrics");
	line.number("seq", sequence).number("at", now_ns());
	std::string all = "{";
	for (auto &s : sections)
		for (auto &m : s.metrics) {
			all += all.size() > 1 ? ",\"" : "\"";
			all += std::to_string(m.id) + "\":[";
			for (size_t i = 0; i < m.values.size(); i++)
				all += (i ? "," : "") + std::to_string(m.values[i]);
			all += "]";
		}
	line.raw("values", all + "}");
	truth(line.finish());
	/* Now: the program may be ending, its last flush behind it. */
	truth_flush();
}

/* First the mark, then the contents, then the magic whole again. */
static void rewrite(volatile uint8_t *at, const std::vector<uint8_t> &bytes)
{
	at[0] = '!';
	std::atomic_thread_fence(std::memory_order_seq_cst);
	for (size_t i = 1; i < bytes.size() && i < FILE_BYTES; i++) {
		at[i] = bytes[i];
		if (i == bytes.size() / 2 && config().metrics_hold_us)
			usleep(useconds_t(config().metrics_hold_us));
	}
	std::atomic_thread_fence(std::memory_order_seq_cst);
	at[0] = 'A';
}

static uint8_t *open_file()
{
	int fd = open(config().metrics.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return nullptr;
	/* Marked before it is long enough to be read. */
	const char *first = config().metrics_old ? "\0\0\0\0" : "!iuM";
	bool ok = pwrite(fd, first, 4, 0) == 4 && ftruncate(fd, FILE_BYTES) == 0;
	void *at = ok ? mmap(nullptr, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
		      : MAP_FAILED;
	close(fd);
	return at == MAP_FAILED ? nullptr : static_cast<uint8_t *>(at);
}

/* The old format is known by its zeros only. */
static void write_old(uint8_t *at)
{
	for (size_t i = 4; i < FILE_BYTES; i++)
		at[i] = uint8_t(i * 167 + 13);
}

static void run()
{
	pthread_setname_np(pthread_self(), "vaiu-metrics");
	uint8_t *at = open_file();
	if (!at || config().metrics_old) {
		if (at)
			write_old(at);
		return;
	}
	Before before;
	uint64_t span = config().metrics_ms * 1000000 / SAMPLES, next = now_ns();
	for (uint32_t sequence = 1;; sequence++) {
		std::vector<Section> sections = {
		    {0x01, {{0x01, {}}, {0x02, {}}}},
		    {0x10, {{0x81, {}}, {0x82, {}}}},
		    {0x20, {{0x10, {}}, {0x11, {}}, {0x12, {}}, {0x13, {}}, {0x14, {}}, {0x15, {}},
			    {0x16, {}}, {0x17, {}}}},
		};
		for (uint32_t i = 0; i < SAMPLES; i++) {
			next += span;
			sleep_until(next);
			sample(sections[2].metrics, before, span);
			sections[1].metrics[0].values.push_back(traffic().allocated >> 20);
		}
		sections[0].metrics[0].values.push_back(7);
		sections[0].metrics[1].values.push_back(512);
		sections[1].metrics[1].values.push_back(traffic().peak >> 20);
		/* The truth comes first: what the file holds is always in it. */
		tell(sections, sequence);
		rewrite(at, encode(sections, sequence));
	}
}

void metrics_start()
{
	if (!config().metrics.empty())
		std::thread(run).detach();
}

} // namespace vaiu
