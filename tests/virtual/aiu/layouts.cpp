/*
 * Record layouts. A layout is an order of fields, their widths and an
 * alignment; offsets follow as a compiler would lay them out.
 *
 *   natural  the fields in the order in which public code names them, aligned.
 *   packed   the same without padding.
 *   narrow   aligned, the kind-like second field one byte wide, 64-bit thread id.
 *   future   what no table knows: another order, other sizes, a longer compute record.
 */
#include "layouts.hpp"

#include "aiupti.hpp"

#include <cstring>

namespace vaiu {

bool layout_known(const std::string &name)
{
	return name == "natural" || name == "packed" || name == "narrow" || name == "future";
}

struct Field {
	uint64_t value;
	size_t width;
};

static std::vector<uint8_t> lay_out(const std::vector<Field> &fields, bool aligned)
{
	std::vector<uint8_t> out;
	size_t largest = 1;
	for (auto &field : fields) {
		if (aligned) {
			out.resize((out.size() + field.width - 1) / field.width * field.width);
			largest = field.width > largest ? field.width : largest;
		}
		for (size_t i = 0; i < field.width; i++)
			out.push_back(uint8_t(field.value >> (8 * i)));
	}
	if (aligned)
		out.resize((out.size() + largest - 1) / largest * largest);
	return out;
}

static uint64_t epoch(uint64_t monotonic) { return monotonic + epoch_offset_ns(); }

static std::vector<uint8_t> compute(const Activity &a)
{
	AIUpti_ActivityComputeCycles record = {};
	record.activity_kind = a.kind;
	record.operation_kind = uint8_t(a.what);
	record.device_id = a.device;
	record.context_id = a.context;
	record.stream_id = a.stream;
	record.correlation_id = a.correlation;
	record.start = epoch(a.start);
	record.end = epoch(a.end);
	record.queued = epoch(a.queued);
	record.submitted = epoch(a.submitted);
	record.local_memory_total = a.bytes;
	strncpy(record.name, a.name.c_str(), sizeof record.name - 1);
	memcpy(record.cycles_ts, a.cycles, sizeof a.cycles);
	auto from = reinterpret_cast<const uint8_t *>(&record);
	size_t size = config().cycles ? sizeof record : sizeof(AIUpti_ActivityCompute);
	return std::vector<uint8_t>(from, from + size);
}

/* The name first and longer, the times after it, an additional field. */
static std::vector<uint8_t> future_compute(const Activity &a)
{
	std::vector<Field> fields = {{a.kind, 1}, {a.what, 1}, {a.correlation, 4}, {a.device, 4}};
	for (size_t i = 0; i < 160; i++)
		fields.push_back({i < a.name.size() ? uint8_t(a.name[i]) : 0u, 1});
	fields.insert(fields.end(), {{a.stream, 8}, {epoch(a.submitted), 8}, {epoch(a.end), 8},
				     {epoch(a.start), 8}, {a.context, 4}});
	return lay_out(fields, true);
}

static void add_cycles(std::vector<Field> &fields, const Activity &a)
{
	if (config().cycles)
		for (uint64_t value : a.cycles)
			fields.push_back({value, 8});
}

static std::vector<Field> in_order(const Activity &a, bool narrow)
{
	std::vector<Field> fields;
	switch (a.kind) {
	case RUNTIME:
		return {{a.kind, 1}, {a.what, narrow ? 1u : 4u}, {epoch(a.start), 8},
			{epoch(a.end), 8}, {a.pid, 4}, {a.tid, narrow ? 8u : 4u},
			{a.correlation, 4}, {a.bytes, 8}};
	case MEMCPY:
		fields = {{a.kind, 1}, {a.what, 1}, {a.device, 4}, {a.context, 4}, {a.stream, 4},
			  {a.correlation, 4}, {epoch(a.start), 8}, {epoch(a.end), 8}, {a.bytes, 8}};
		add_cycles(fields, a);
		return fields;
	case MEMSET:
		return {{a.kind, 1}, {a.device, 4}, {a.context, 4}, {a.stream, 4},
			{a.correlation, 4}, {epoch(a.start), 8}, {epoch(a.end), 8}, {a.bytes, 8}};
	case MEMORY:
		return {{a.kind, 1}, {a.what, 1}, {a.device, 4}, {a.pid, 4}, {a.stream, 4},
			{a.correlation, 4}, {a.address, 8}, {a.bytes, 8}, {epoch(a.start), 8},
			{epoch(a.end), 8}};
	default:
		return {{a.kind, 1}, {a.what, 4}, {epoch(a.start), 8}, {a.device, 4}, {a.bytes, 8}};
	}
}

static std::vector<Field> future(const Activity &a)
{
	return {{a.kind, 1}, {a.what, 2}, {a.correlation, 8}, {epoch(a.end), 8},
		{epoch(a.start), 8}, {a.tid, 4}, {a.pid, 4}, {a.device, 4}, {a.stream, 4},
		{a.bytes, 8}, {a.address, 8}};
}

std::vector<uint8_t> layout_encode(const Activity &a)
{
	const std::string &layout = config().layout;
	if (layout == "future")
		return a.kind == COMPUTE ? future_compute(a) : lay_out(future(a), true);
	if (a.kind == COMPUTE)
		return compute(a);
	return lay_out(in_order(a, layout == "narrow"), layout != "packed");
}

size_t layout_size(uint8_t kind)
{
	switch (kind) {
	case COMPUTE:
	case MEMSET:
	case MEMORY:
	case MEMCPY:
	case RUNTIME:
	case METRIC: {
		Activity example;
		example.kind = Kind(kind);
		return layout_encode(example).size();
	}
	default:
		return 0;
	}
}

} // namespace vaiu
