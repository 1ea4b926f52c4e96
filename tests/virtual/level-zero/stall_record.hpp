/* EU stall records, byte for byte as Linux's xe driver hands them out
 * (drivers/gpu/drm/xe/xe_eu_stall.c), and the streams that carry them. */
#ifndef VZE_STALL_RECORD_HPP
#define VZE_STALL_RECORD_HPP

#include "blob.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace vze {

constexpr size_t STALL_RECORD = 64;

/* A counter of a record holds no more. */
constexpr uint32_t STALL_COUNTER_MAX = 255;

/* Samples of one instruction by reason, each at most STALL_COUNTER_MAX. */
using ReasonCounts = std::array<uint32_t, STALL_REASONS>;

/* Whether the hardware that is played has a counter for this. */
bool has_counter(StallReason reason);

/* Appends a record to `out`. The address is the instruction's, in full. */
void put_record(uint64_t address, const ReasonCounts &counts, std::vector<uint8_t> &out);

/* Where the records of one GT go: a file, or a FIFO that someone reads. */
struct StallStream {
	uint32_t device = 0, gt = 0;
	int fd = -1;
	/* Windows with samples so far. */
	uint64_t windows = 0;
	/* Windows that were lost, of which the stream does not say so yet. */
	uint32_t untold = 0;

	/* Takes a window's records; how many of them were written. Those of a
	 * dropped window are not. Where windows are framed, either all are
	 * written or the next frame says that some were dropped. */
	size_t write_window(uint64_t from, uint64_t to, const std::vector<uint8_t> &records,
			    bool dropped);

      private:
	bool ready();
	size_t write_raw(const std::vector<uint8_t> &records);
	bool write_frame(uint64_t from, uint64_t to, const std::vector<uint8_t> &records,
			 uint32_t drops);
	bool has_room(size_t bytes) const;
	bool needs_header() const;
};

} // namespace vze

#endif
