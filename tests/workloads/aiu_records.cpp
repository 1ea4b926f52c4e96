/*
 * The activity API as Kineto's plug-in uses it: loaded by name when it is first
 * wanted, buffers kept until the end, then walked record by record.
 */
#include "aiu_work.h"

#include "../virtual/aiu/aiupti.hpp"

#include <dlfcn.h>

struct Activities {
	decltype(&aiuptiActivityRegisterCallbacks) register_callbacks;
	decltype(&aiuptiActivityEnable) enable, disable;
	decltype(&aiuptiFlushAllActivities) flush;
	decltype(&aiuptiActivityGetNextRecord) next;
	decltype(&aiuptiActivityGetNumDroppedRecords) dropped;
};

struct Filled {
	uint8_t *buffer;
	size_t valid;
};

static Activities api;
static std::mutex lock;
static std::vector<Filled> filled;
static Account account;
static size_t buffer_bytes = 1 << 20;
static unsigned most_buffers;
static std::string dump_path;

static void requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
	std::lock_guard<std::mutex> guard(lock);
	*max_records = 0;
	if (most_buffers && account.buffers >= most_buffers)
		return;
	account.buffers++;
	*buffer = static_cast<uint8_t *>(calloc(1, buffer_bytes));
	*size = *buffer ? buffer_bytes : 0;
}

static void completed(uint8_t *buffer, size_t, size_t valid)
{
	std::lock_guard<std::mutex> guard(lock);
	filled.push_back({buffer, valid});
}

template <class F> static void find(void *library, const char *name, F &to)
{
	to = reinterpret_cast<F>(dlsym(library, name));
	if (!to) {
		fprintf(stderr, "no %s\n", name);
		exit(5);
	}
}

NOINLINE void activities_load(const Options &options)
{
	if (api.enable)
		return;
	void *library = dlopen(options.library.c_str(), RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(5);
	}
	find(library, "_Z31aiuptiActivityRegisterCallbacksPFvPPhPmS1_EPFvS_mmE",
	     api.register_callbacks);
	find(library, "_Z20aiuptiActivityEnable19AIUpti_ActivityKind", api.enable);
	find(library, "_Z21aiuptiActivityDisable19AIUpti_ActivityKind", api.disable);
	find(library, "_Z24aiuptiFlushAllActivitiesv", api.flush);
	find(library, "_Z27aiuptiActivityGetNextRecordPhmPP15AIUpti_Activity", api.next);
	find(library, "_Z34aiuptiActivityGetNumDroppedRecordsPm", api.dropped);
	if (options.buffer)
		buffer_bytes = options.buffer;
	most_buffers = options.buffers;
	dump_path = options.dump;
	account.errors += api.register_callbacks(requested, completed) != AIUPTI_SUCCESS;
}

NOINLINE void activities_enable(bool on)
{
	static const AIUpti_ActivityKind KINDS[] = {
	    AIUPTI_ACTIVITY_KIND_MEMCPY, AIUPTI_ACTIVITY_KIND_MEMCPY2,
	    AIUPTI_ACTIVITY_KIND_SYNCHRONIZATION, AIUPTI_ACTIVITY_KIND_MEMORY,
	    AIUPTI_ACTIVITY_KIND_MEMSET, AIUPTI_ACTIVITY_KIND_CMPT,
	    AIUPTI_ACTIVITY_KIND_RUNTIME, AIUPTI_ACTIVITY_KIND_DRIVER};
	for (auto kind : KINDS)
		account.errors += (on ? api.enable : api.disable)(kind) != AIUPTI_SUCCESS;
}

NOINLINE static void walk(const Filled &one)
{
	AIUpti_Activity *record = nullptr;
	while (api.next(one.buffer, one.valid, &record) == AIUPTI_SUCCESS)
		records.add(std::to_string(record->kind));
}

static void dump()
{
	FILE *file = dump_path.empty() ? nullptr : fopen(dump_path.c_str(), "wb");
	if (!file)
		return;
	for (auto &one : filled) {
		uint64_t size = one.valid;
		account.errors += fwrite(&size, sizeof size, 1, file) != 1;
		account.errors += fwrite(one.buffer, 1, one.valid, file) != one.valid;
	}
	account.errors += fclose(file) != 0;
}

NOINLINE Account activities_finish()
{
	if (!api.enable)
		return account;
	activities_enable(false);
	account.errors += api.flush() != AIUPTI_SUCCESS;
	size_t dropped = 0;
	account.errors += api.dropped(&dropped) != AIUPTI_SUCCESS;
	account.dropped = dropped;
	std::lock_guard<std::mutex> guard(lock);
	dump();
	for (auto &one : filled) {
		walk(one);
		free(one.buffer);
	}
	return account;
}
