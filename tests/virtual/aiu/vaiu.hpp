/*
 * What the three libraries of the virtual AIU share. libsenlib.so holds the
 * device, its clocks, the truth file and the metrics file; libflex.so the
 * runtime that programs call; libaiupti.so the activity records. Nothing here
 * exists in the real libraries: a profiler must not look at it.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#define VAIU_SHARED __attribute__((visibility("default")))

namespace vaiu {

/* Settings, all from VAIU_* variables; README.md lists them. */
struct Config {
	std::string truth;
	bool truth_sync = false;
	std::string layout = "natural";
	bool cycles = true;
	bool prep_records = true;
	double soc_hz = 1e9;
	std::vector<double> drift_ppm;
	uint64_t cycles_start = 0;
	int64_t skew_ns = 0;
	uint64_t jitter_ns = 0;
	uint64_t exec_ns = 0;
	uint64_t prep_ns = 3000;
	uint64_t dma_ns = 2000;
	double dma_bytes_per_ns = 16;
	std::vector<std::pair<std::string, uint64_t>> kernels;
	std::string metrics;
	uint64_t metrics_ms = 20;
	uint64_t metrics_hold_us = 200;
	bool metrics_old = false;
	uint64_t telemetry_ns = 0;
	std::string world;
	uint32_t rank = 0, world_size = 1, local_rank = 0;
};
VAIU_SHARED const Config &config();

/* CLOCK_MONOTONIC. */
VAIU_SHARED uint64_t now_ns();
/* CLOCK_REALTIME minus CLOCK_MONOTONIC, measured once for each process. */
VAIU_SHARED uint64_t epoch_offset_ns();
VAIU_SHARED void sleep_until(uint64_t monotonic_ns);
VAIU_SHARED uint32_t thread_id();

/* One JSON object on a line of its own. */
class VAIU_SHARED Line {
      public:
	explicit Line(const char *type);
	Line &number(const char *name, uint64_t value);
	Line &real(const char *name, double value);
	Line &text(const char *name, std::string_view value);
	Line &raw(const char *name, std::string_view json);
	Line &numbers(const char *name, const uint64_t *values, size_t count);
	std::string finish();

      private:
	void key(const char *name);
	std::string text_;
};
VAIU_SHARED bool truth_on();
VAIU_SHARED void truth(std::string &&lines);
VAIU_SHARED void truth_flush();

/* Correlation ids, and ids of anything else that needs one. */
VAIU_SHARED uint32_t next_id();

/* Kinds of activity records, operation kinds and runtime cbids. */
enum Kind : uint8_t {
	COMPUTE = 1,
	MEMSET = 2,
	MEMORY = 3,
	MEMCPY = 4,
	RUNTIME = 6,
	METRIC = 11,
};
enum { OPERATION_PREP = 1, OPERATION_EXECUTE = 2 };
enum { COPY_HTOD = 1, COPY_DTOH = 2, COPY_PTOP = 3 };
enum { MEMORY_ALLOCATION = 1, MEMORY_RELEASE = 2 };

/* Something worth an activity record, before it has a layout. */
struct Activity {
	Kind kind;
	uint32_t what = 0; /* operation, copy or memory kind; cbid; event id */
	uint32_t device = 0, context = 0, stream = 0, correlation = 0;
	uint64_t start = 0, end = 0; /* CLOCK_MONOTONIC; made epoch on writing */
	uint64_t queued = 0, submitted = 0;
	uint64_t bytes = 0, address = 0;
	uint64_t cycles[5] = {};
	uint32_t pid = 0, tid = 0;
	std::string name;
};
using Sink = void (*)(const Activity &);
/* Where records go, and which kinds are wanted (bit = kind); none at first. */
VAIU_SHARED void set_sink(Sink sink, uint32_t kinds);
VAIU_SHARED bool wanted(Kind kind);
VAIU_SHARED void report(const Activity &activity);

/* An API call, from entry to exit, as the truth file tells it. */
class VAIU_SHARED Call {
      public:
	Call(const char *function, uint32_t cbid = 0);
	~Call();
	Call(const Call &) = delete;
	Call &operator=(const Call &) = delete;
	/* Calls the hook, which may throw; the object is complete by now. */
	void enter();
	Call &arg(const char *name, uint64_t value);
	Call &text(const char *name, std::string_view value);
	/* What the runtime record carries beside the times. */
	Call &data(uint64_t value) { data_ = value; return *this; }
	int done(int result);
	void *done(void *result);
	uint32_t correlation() const { return correlation_; }
	uint64_t entered() const { return start_; }
	/* Tells of all open calls of this thread: it is about to longjmp. */
	static void abandon_all(const char *how);

      private:
	void tell(const char *how, uint64_t result);
	const char *function_;
	Call *parent_;
	uint32_t cbid_, id_, correlation_;
	uint64_t start_, data_ = 0;
	bool told_ = false;
	std::string args_;
};

/* A control block, or anything else that the device does in order. */
struct Block {
	enum What { CONTROL, HTOD, DTOH, PTOP, FILL, CALLBACK } what;
	uint64_t stream = 0;
	uint32_t correlation = 0;
	uint64_t bytes_in = 0, bytes_out = 0;
	uint64_t address = 0;
	std::string name;
	std::function<void()> callback;
	uint64_t queued = 0;
	/* Set on submission. */
	uint64_t submitted = 0, sequence = 0;
};

/* What the device has done so far, for the metrics file. */
struct Traffic {
	std::atomic<uint64_t> read_memory{0}, written_memory{0};
	std::atomic<uint64_t> from_host{0}, to_host{0};
	std::atomic<uint64_t> rdma_read{0}, rdma_written{0};
	std::atomic<uint64_t> busy_ns{0}, allocated{0}, peak{0};
};

VAIU_SHARED void device_start(uint32_t device);
VAIU_SHARED uint32_t device_id();
VAIU_SHARED uint64_t device_submit(Block &&block);
/* Waits until everything submitted to the stream before is done. */
VAIU_SHARED void device_wait(uint64_t stream);
VAIU_SHARED bool device_idle(uint64_t stream);
VAIU_SHARED uint32_t device_cycles(uint64_t monotonic_ns);
VAIU_SHARED Traffic &traffic();
VAIU_SHARED void metrics_start();

/* Waits until every rank has come to it. */
VAIU_SHARED void world_barrier(unsigned which);

} // namespace vaiu

/* For workloads: what happens inside every API call, and the end of a test. */
extern "C" {
VAIU_SHARED void vaiu_set_hook(void (*hook)(const char *function));
VAIU_SHARED void vaiu_abandon_calls(void);
VAIU_SHARED void vaiu_flush_truth(void);
}
