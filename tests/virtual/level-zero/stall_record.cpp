#include "stall_record.hpp"

#include "config.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace vze {

namespace {

/* First bits of the ten 8-bit counters, in the order of StallReason. PVC has no
 * counter for tdr (-1). */
constexpr int PVC_BITS[STALL_REASONS] = {29, -1, 37, 45, 53, 61, 69, 77, 85, 93};
constexpr int XE2_BITS[STALL_REASONS] = {101, 29, 37, 45, 53, 61, 69, 77, 85, 93};
constexpr int XE3P_BITS[STALL_REASONS] = {133, 61, 69, 77, 85, 93, 101, 109, 117, 125};

/* As much as a FIFO is allowed to hold: a device holds 512 KiB for each core. */
constexpr int FIFO_BYTES = 1 << 20;

struct Layout {
	uint32_t ip_bits;
	const int *counter;
};

Layout layout()
{
	switch (config.stall_format) {
	case StallFormat::Pvc:
		return {29, PVC_BITS};
	case StallFormat::Xe3p:
		return {61, XE3P_BITS};
	default:
		return {29, XE2_BITS};
	}
}

void put_bits(uint8_t *record, uint32_t at, uint32_t width, uint64_t value)
{
	for (uint32_t i = 0; i < width; i++)
		if (value >> i & 1)
			record[(at + i) / 8] |= static_cast<uint8_t>(1U << ((at + i) % 8));
}

} // namespace

bool has_counter(StallReason reason)
{
	return layout().counter[reason] >= 0;
}

void put_record(uint64_t address, const ReasonCounts &counts, std::vector<uint8_t> &out)
{
	Layout l = layout();
	/* Only Xe3p's field is wide enough for whole addresses; the others count
	 * from the instruction base address. */
	if (l.ip_bits < 61)
		address -= config.isa_base;
	size_t at = out.size();
	out.resize(at + STALL_RECORD);
	put_bits(&out[at], 0, l.ip_bits, address >> 3);
	for (int reason = 0; reason < STALL_REASONS; reason++)
		if (counts[reason] > 0)
			put_bits(&out[at], static_cast<uint32_t>(l.counter[reason]), 8, counts[reason]);
}

bool StallStream::ready()
{
	if (fd >= 0)
		return true;
	std::string path = expand_path(config.stall_path, device, gt);
	/* A FIFO that nobody reads yet cannot be opened. */
	fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
	if (fd >= 0)
		fcntl(fd, F_SETPIPE_SZ, FIFO_BYTES);
	return fd >= 0;
}

size_t StallStream::write_window(uint64_t, uint64_t, const std::vector<uint8_t> &records,
				 bool dropped)
{
	size_t done = 0;
	while (!dropped && done < records.size() && ready()) {
		/* Up to PIPE_BUF a FIFO takes all or nothing: whole records only, so
		 * that those of several processes do not mix. */
		size_t piece = std::min<size_t>(records.size() - done, 4096);
		ssize_t n = write(fd, records.data() + done, piece);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		done += static_cast<size_t>(n);
	}
	return done / STALL_RECORD;
}

} // namespace vze
