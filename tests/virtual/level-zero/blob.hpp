/* What a module's bytes say about its kernels. */
#ifndef VZE_BLOB_HPP
#define VZE_BLOB_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace vze {

/* Reasons in the order of the EU stall records' counters. */
enum StallReason : uint8_t {
	STALL_ACTIVE,
	STALL_TDR,
	STALL_OTHER,
	STALL_CONTROL,
	STALL_PIPE,
	STALL_SEND,
	STALL_DIST,
	STALL_SBID,
	STALL_SYNC,
	STALL_FETCH,
	STALL_REASONS,
};

extern const char *const STALL_NAMES[STALL_REASONS];

/* One entry of a kernel's schedule: each execution, however long, is seen
 * `count` times at this instruction for this reason; or `count` times in each
 * millisecond that it takes. */
struct Stall {
	uint32_t offset;
	StallReason reason;
	uint32_t count;
	bool per_ms;
};

struct KernelInfo {
	std::string name;
	/* An execution takes ns + groups * group_ns. */
	uint64_t ns = 0;
	uint64_t group_ns = 0;
	/* Durations of successive launches, over and over; instead of ns. */
	std::vector<uint64_t> turns;
	uint32_t simd = 16;
	uint32_t args = 0;
	uint32_t required[3] = {0, 0, 0};
	/* Machine code: its place in the blob (0, 0: none given) and its size. */
	size_t code_at = 0;
	size_t code_size = 0;
	uint64_t isa_size = 4096;
	std::vector<Stall> stalls;
};

/* How the bytes are to be read. */
enum class BlobKind { Native, Spirv };

/*
 * Kernels of a module: of a zebin (ELF64, machine 205: a kernel for each section
 * `.text.NAME` that .ze_info lists, refined by an optional section `.vze`), of a
 * text of our own (what `.vze` holds, after the line `vze module 1`), or of
 * SPIR-V (its entry points).
 *
 * The text has one statement per line:
 *   kernel NAME [ns=N] [turns=N,N,...] [group_ns=N] [simd=N] [args=N] [isa=BYTES]
 *          [required=X,Y,Z]
 *   stall NAME OFFSET REASON COUNT
 *   rate NAME OFFSET REASON COUNT_PER_MILLISECOND
 *
 * On failure the message for the build log is returned, else an empty string.
 */
std::string parse_blob(BlobKind kind, const uint8_t *bytes, size_t size,
		       std::vector<KernelInfo> &kernels);

/* The statements of a file (VZE_SCHEDULE) about those of these kernels that it
 * names. */
std::string apply_schedule(const char *path, std::vector<KernelInfo> &kernels);

/* A zebin file of these kernels with code of their sizes, but no `.vze`. */
std::vector<uint8_t> write_zebin(const std::vector<KernelInfo> &kernels);

} // namespace vze

#endif
