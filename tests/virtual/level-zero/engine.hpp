/*
 * Engines, which run commands, and events, which tell when they are done.
 *
 * An engine is one thread that computes when each command starts and ends, and
 * makes the end visible no earlier than it happened. Start and end are exact
 * however late the thread wakes. An engine serves several streams: one for each
 * command queue or immediate list that was put on it.
 */
#ifndef VZE_ENGINE_HPP
#define VZE_ENGINE_HPP

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

namespace vze {

struct KernelImmutableData;
class Engine;

/* When something that can be waited for happened. */
struct EventState {
	std::atomic<bool> signalled{false};
	/* Of the command that signalled it; 0, 0 when the host did. Valid once
	 * signalled. */
	uint64_t start_ns = 0;
	uint64_t end_ns = 0;
	/* Root device whose clock it shows. */
	uint32_t device = 0;
	/* {context start, global start, context end, global end}, where the
	 * hardware would write them; null without timestamps. */
	uint32_t *packet = nullptr;
	std::shared_ptr<uint8_t> own_packet;
};

void signal_event(EventState &event, uint64_t start_ns, uint64_t end_ns);
void reset_event(EventState &event);
/* Waits, at most timeout ns (UINT64_MAX: for ever); whether it is signalled. */
bool wait_event(const EventState &event, uint64_t timeout);

enum class CommandKind : uint8_t {
	Kernel,
	Copy,
	Fill,
	Barrier,
	SignalEvent,
	ResetEvent,
	WaitEvents,
	WriteTimestamp,
	QueryTimestamps,
	HostFunction,
	/* Of this driver: the end of all earlier commands of the stream. */
	Marker,
};

/* One command of a list or a stream. */
struct Command {
	CommandKind kind = CommandKind::Marker;
	/* Numbers of the calls that appended and that submitted it. */
	uint64_t seq = 0;
	uint64_t submit = 0;
	uint64_t submit_ns = 0;
	std::shared_ptr<const KernelImmutableData> kernel;
	/* Which of the kernel's launches it is. */
	uint64_t turn = 0;
	uint32_t groups[3] = {0, 0, 0};
	uint32_t group_size[3] = {0, 0, 0};
	/* Group counts are read from here when it starts (indirect launches). */
	const void *indirect = nullptr;
	uint64_t bytes = 0;
	void *to = nullptr;
	const void *from = nullptr;
	/* Pattern of a fill; host function of type void (void *). */
	std::vector<uint8_t> pattern;
	void (*host_function)(void *) = nullptr;
	/* Of WriteTimestamp and QueryTimestamps. */
	uint32_t clock_device = 0;
	std::vector<std::shared_ptr<EventState>> queried;
	/* Starts after the stream's previous command, or after all of them. */
	bool in_order = false;
	bool after_all = false;
	std::shared_ptr<EventState> signal;
	std::vector<std::shared_ptr<EventState>> waits;
};

/* The commands of one queue or immediate list, in order of submission. */
struct Stream {
	Engine *engine = nullptr;
	/* Guarded by the engine's lock. */
	std::deque<Command> waiting;
	/* End of the last command, of all, and of the last barrier. */
	uint64_t last_end = 0;
	uint64_t all_end = 0;
	uint64_t barrier_end = 0;
	/* Its first command waits for an event. */
	bool held = false;
};

/* Streams whose first command waits for an event, in this process. */
extern std::atomic<uint32_t> held_streams;

class Engine {
      public:
	Engine(uint32_t device, int32_t sub, uint32_t ordinal, uint32_t index);

	std::shared_ptr<Stream> new_stream();
	/* Queues commands; waits while too many are queued. */
	void submit(Stream &stream, std::vector<Command> commands);
	void submit_one(Stream &stream, Command command);
	/* The event of everything submitted to the stream so far. */
	std::shared_ptr<EventState> marker(Stream &stream);
	/* The same for each of its streams. */
	std::vector<std::shared_ptr<EventState>> markers();
	/* Looks again at commands that wait for events. */
	void poke();
	/* Ends the thread. */
	void stop();
	void before_fork();
	void after_fork(bool child);

	const uint32_t device;
	const int32_t sub;
	const uint32_t ordinal;
	const uint32_t index;

      private:
	struct Running {
		uint64_t start, end, order;
		Command command;
	};
	struct Later {
		bool operator()(const Running &a, const Running &b) const
		{
			return a.end != b.end ? a.end > b.end : a.order > b.order;
		}
	};

	void ensure_thread();
	void run();
	bool ready(Stream &stream);
	bool schedule_ready();
	void schedule(Stream &stream, Command command);
	void take_finished(std::vector<Running> &out);
	void finish(Running &running);
	void tell(const Running &running);
	void cut();

	std::mutex lock_;
	std::condition_variable wake_;
	std::condition_variable room_;
	std::vector<std::weak_ptr<Stream>> streams_;
	std::vector<uint64_t> lanes_;
	std::priority_queue<Running, std::vector<Running>, Later> running_;
	uint64_t order_ = 0;
	size_t queued_ = 0;
	bool started_ = false;
	bool sleeping_ = false;
	bool stopping_ = false;
	std::thread thread_;
};

/* The engine of a device's queue group and index; made when first asked for. */
Engine &engine_of(uint32_t device, int32_t sub, uint32_t ordinal, uint32_t index);
/* All engines of this process on a root device. */
std::vector<Engine *> engines_of(uint32_t device);
/* Ends all engine threads after what is already due. */
void stop_engines();
/* Around fork: the child has the engines, but neither threads nor commands. */
void engines_before_fork();
void engines_after_fork(bool child);

} // namespace vze

#endif
