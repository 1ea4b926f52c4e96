/*
 * The activity API, by the names that public callers use. The compute record
 * is as published (without and with the cycle counters of libaiupti #114); the
 * layouts of the others are not public, layouts.cpp has several.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#define AIUPTI_EXPORT __attribute__((visibility("default")))

enum AIUpti_ResultTypes { AIUPTI_SUCCESS = 0, AIUPTI_ERROR_INVALID = 1, AIUPTI_ERROR_END = 2 };

enum AIUpti_ActivityKind {
	AIUPTI_ACTIVITY_KIND_INVALID = 0,
	AIUPTI_ACTIVITY_KIND_CMPT = 1,
	AIUPTI_ACTIVITY_KIND_MEMSET = 2,
	AIUPTI_ACTIVITY_KIND_MEMORY = 3,
	AIUPTI_ACTIVITY_KIND_MEMCPY = 4,
	AIUPTI_ACTIVITY_KIND_MEMCPY2 = 5,
	AIUPTI_ACTIVITY_KIND_RUNTIME = 6,
	AIUPTI_ACTIVITY_KIND_DRIVER = 7,
	AIUPTI_ACTIVITY_KIND_SYNCHRONIZATION = 8,
	AIUPTI_ACTIVITY_KIND_EVENT = 9,
	AIUPTI_ACTIVITY_KIND_ENVIRONMENT = 10,
	AIUPTI_ACTIVITY_KIND_METRIC = 11,
};

struct AIUpti_Activity {
	uint8_t kind;
};

struct AIUpti_ActivityCompute {
	uint8_t activity_kind;
	uint8_t operation_kind;
	uint32_t device_id, context_id, stream_id, correlation_id;
	uint64_t start, end, queued, submitted;
	size_t local_memory_total;
	char name[128];
};
static_assert(sizeof(AIUpti_ActivityCompute) == 192, "as published");

struct AIUpti_ActivityComputeCycles : AIUpti_ActivityCompute {
	uint64_t cycles_ts[5];
};
static_assert(sizeof(AIUpti_ActivityComputeCycles) == 232, "as published");

typedef void AIUpti_BufferRequested(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void AIUpti_BufferCompleted(uint8_t *buffer, size_t size, size_t valid);

AIUPTI_EXPORT AIUpti_ResultTypes aiuptiActivityRegisterCallbacks(AIUpti_BufferRequested *requested,
								 AIUpti_BufferCompleted *completed);
AIUPTI_EXPORT AIUpti_ResultTypes aiuptiActivityEnable(AIUpti_ActivityKind kind);
AIUPTI_EXPORT AIUpti_ResultTypes aiuptiActivityDisable(AIUpti_ActivityKind kind);
AIUPTI_EXPORT AIUpti_ResultTypes aiuptiFlushAllActivities();
/*
 * The next record of a completed buffer. `record` holds the one before; where
 * it is null, the walk of this buffer goes on in this thread where it was.
 */
AIUPTI_EXPORT AIUpti_ResultTypes aiuptiActivityGetNextRecord(uint8_t *buffer, size_t valid,
							     AIUpti_Activity **record);
AIUPTI_EXPORT AIUpti_ResultTypes aiuptiActivityGetNumDroppedRecords(size_t *dropped);
