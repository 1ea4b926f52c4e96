#include "stall_record.hpp"

#include "config.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <string_view>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
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

/* A device capture (aiprof's eu_stall/capture.rs): a header, and a frame for each
 * window; little-endian. */
constexpr size_t HEADER_MAX = 36 + 256;
constexpr size_t FRAME = 24;

void put_number(uint64_t n, int bytes, std::vector<uint8_t> &out)
{
	for (int i = 0; i < bytes; i++)
		out.push_back(static_cast<uint8_t>(n >> (8 * i)));
}

void put_header(uint32_t device, uint32_t gt, std::vector<uint8_t> &out)
{
	constexpr std::string_view magic = "aipdevc1";
	constexpr uint64_t monotonic = 1, no_cycles = 0, no_base = UINT64_MAX;
	std::string name = "virtual " + std::to_string(device) + " GT" + std::to_string(gt);
	out.insert(out.end(), magic.begin(), magic.end());
	put_number(static_cast<uint64_t>(config.stall_format), 1, out);
	put_number(monotonic, 1, out);
	put_number(STALL_RECORD, 2, out);
	put_number(device, 4, out);
	put_number(gt, 4, out);
	put_number(no_cycles, 4, out);
	put_number(no_base, 8, out);
	put_number(name.size(), 4, out);
	out.insert(out.end(), name.begin(), name.end());
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
	/* A FIFO without a reader cannot be opened yet. */
	fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
	if (fd >= 0)
		fcntl(fd, F_SETPIPE_SZ, FIFO_BYTES);
	return fd >= 0;
}

size_t StallStream::write_raw(const std::vector<uint8_t> &records)
{
	size_t done = 0;
	while (done < records.size()) {
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

/* Whether so much can be written at once: a FIFO may be full. The first and last
 * page of what is in it may be used in part. */
bool StallStream::has_room(size_t bytes) const
{
	int size = fcntl(fd, F_GETPIPE_SZ), used = 0;
	if (size < 0)
		return true;
	if (ioctl(fd, FIONREAD, &used) != 0)
		return false;
	return bytes + static_cast<size_t>(used) + 2 * 4096 <= static_cast<size_t>(size);
}

/* Whether this is the first to write here, of all processes. */
bool StallStream::needs_header() const
{
	struct stat status;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
		return status.st_size == 0;
	std::string mark = expand_path(config.stall_path, device, gt) + ".begun";
	int made = open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (made >= 0)
		close(made);
	return made >= 0;
}

bool StallStream::write_frame(uint64_t from, uint64_t to, const std::vector<uint8_t> &records,
			      uint32_t drops)
{
	/* Frames of several processes do not mix. */
	flock(fd, LOCK_EX);
	bool room = has_room(HEADER_MAX + FRAME + records.size());
	std::vector<uint8_t> bytes;
	if (room && needs_header())
		put_header(device, gt, bytes);
	put_number(from, 8, bytes);
	put_number(to, 8, bytes);
	put_number(drops, 4, bytes);
	put_number(records.size(), 4, bytes);
	bytes.insert(bytes.end(), records.begin(), records.end());
	size_t done = 0;
	while (room && done < bytes.size()) {
		ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		done += static_cast<size_t>(n);
	}
	flock(fd, LOCK_UN);
	return done == bytes.size();
}

size_t StallStream::write_window(uint64_t from, uint64_t to, const std::vector<uint8_t> &records,
				 bool dropped)
{
	size_t n = records.size() / STALL_RECORD;
	if (!config.stall_framed)
		return dropped || !ready() ? 0 : write_raw(records);
	if (dropped)
		untold++;
	if (!ready() || !write_frame(from, to, dropped ? std::vector<uint8_t>() : records, untold)) {
		untold += !dropped;
		return 0;
	}
	untold = 0;
	return dropped ? 0 : n;
}

} // namespace vze
