/* What the environment asks of the driver, read once when it is loaded. */
#ifndef VZE_CONFIG_HPP
#define VZE_CONFIG_HPP

#include <cstdint>
#include <string>

namespace vze {

/* How much goes into the truth file. */
enum class TruthMode { Off, Count, Full };

/* The hardware whose EU stall records are written. */
enum class StallFormat { Pvc, Xe2, Xe3p };

struct Config {
	uint32_t devices = 1;
	/* Sub-devices of each device; 0: none. */
	uint32_t subdevices = 0;
	/* What the driver claims the device clock's frequency to be, Hz. */
	uint64_t clock_hz = 19200000;
	/* How much faster the clock really runs, parts per billion. */
	int64_t clock_ppb = 0;
	/* Ticks of the first device at CLOCK_MONOTONIC zero. */
	uint64_t clock_offset = 0;
	/* Valid bits of kernel timestamps and of global timestamps. */
	uint32_t clock_bits = 32;
	uint32_t timestamp_bits = 32;
	/* Duration of kernels whose module gives none, ns. */
	uint64_t kernel_ns = 10000;
	/* Bandwidth of copies and fills, bytes per microsecond. */
	uint64_t copy_rate = 10000;
	/* From submission to the earliest start, and between commands, ns. */
	uint64_t latency_ns = 1000;
	uint64_t gap_ns = 200;
	/* Commands that one engine runs side by side. */
	uint32_t lanes = 2;
	/* Launches and copies are counted and do nothing else. */
	bool null = false;
	/* Pointers of the program are tested before they are followed. */
	bool checked = false;
	/* Waits poll, as Intel's driver does, and burn CPU. */
	bool spin = false;
	/* Handles begin with dispatch tables, as newer drivers' do. */
	bool dispatch = true;
	TruthMode truth = TruthMode::Off;
	/* Paths, never freed; this object has no destructor, since threads read it
	 * until the process is gone. */
	const char *truth_path = "";
	/* Every line is written at once, for programs that are killed. */
	bool truth_flush = false;
	const char *stall_path = "";
	StallFormat stall_format = StallFormat::Xe2;
	/* Records are wrapped into a device capture: with the times of windows. */
	bool stall_framed = false;
	/* Length of a read window, ns. */
	uint64_t stall_window_ns = 5000000;
	/* Parts of a device that are sampled by themselves; 0: one, or as many as
	 * there are sub-devices. */
	uint32_t gts = 0;
	/* Every so many windows one is thrown away; 0: none. */
	uint32_t stall_drop = 0;
	/* Of so many samples one is written. */
	uint32_t stall_every = 1;
	/* Statements that are added to those of modules. */
	const char *schedule_path = "";
	/* Where kernels lie in the device's address space. */
	uint64_t isa_base = 0x800100000000;
	/* Addresses of modules that are gone are given out again. */
	bool isa_reuse = false;
	/* The kernels of a module share one allocation. */
	bool isa_pool = false;
	/* Probes of iaprof's patched driver fire, and modules are dumped here. */
	bool usdt = false;
	const char *dump_path = "/tmp";
	/* A device file that an ioctl of each submission is made on; empty: none is. */
	const char *submit_path = "";
	/* Calls on immediate lists that one ioctl hands over. */
	uint32_t submit_every = 1;
	/* A thread of the driver's own makes the ioctls. */
	bool submit_thread = false;
};

extern Config config;

/* Reads the environment. A value that makes no sense ends the program: a test
 * must not run with another machine than it asked for. */
void read_config();

/* GTs of a device. */
inline uint32_t gts_of_device()
{
	if (config.gts > 0)
		return config.gts;
	return config.subdevices > 0 ? config.subdevices : 1;
}

/* A path of the environment with %p (process id), %d (device) and %g (GT)
 * replaced. */
std::string expand_path(const char *path, uint32_t device, uint32_t gt = 0);

} // namespace vze

#endif
