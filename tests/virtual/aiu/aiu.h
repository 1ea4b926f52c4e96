/*
 * The exported C functions. Their names are those of the events that AIU users
 * know; the arguments of the real ones are not public, these are ours.
 */
#ifndef VAIU_AIU_H
#define VAIU_AIU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define AIU_EXPORT __attribute__((visibility("default")))

/* One control block: copy in, execute, copy out. */
struct aiu_control_block {
	const char *name;
	uint64_t bytes_in, bytes_out;
};

/* Each returns 0 on success and -1 otherwise. */
AIU_EXPORT int aiuLaunchControlBlocks(uint64_t stream, const struct aiu_control_block *blocks,
				      uint32_t count);
AIU_EXPORT int aiuLaunchComputeStream(uint64_t stream, const struct aiu_control_block *blocks,
				      uint32_t count);
AIU_EXPORT int aiuMalloc(uint64_t *address, uint64_t bytes, int device);
AIU_EXPORT int aiuResizeTensorAllocation(uint64_t *address, uint64_t bytes);
AIU_EXPORT int aiuDataTransferHtoD(uint64_t stream, uint64_t device, const void *host,
				   uint64_t bytes);
AIU_EXPORT int aiuDataTransferDtoH(uint64_t stream, void *host, uint64_t device, uint64_t bytes);
AIU_EXPORT int aiuScheduleWait(uint64_t stream);

/* A part of a graph: runs `body`, in which further calls are made. */
typedef int aiu_body(void *argument);
AIU_EXPORT int aiuGraphExecution(const char *name, aiu_body *body, void *argument);
AIU_EXPORT int aiuLaunchSuperNode(const char *name, aiu_body *body, void *argument);
AIU_EXPORT int aiuSuperNodeExecution(const char *name, aiu_body *body, void *argument);
AIU_EXPORT int aiuNodeCompute(const char *name, aiu_body *body, void *argument);

/* Host work on something, for a given number of nanoseconds. */
#define AIU_PLAIN_CALLS(X)                                                                         \
	X(aiuInitGraph, 6)                                                                         \
	X(aiuDataConvert, 13)                                                                      \
	X(aiuInitScheduler, 14)                                                                    \
	X(aiuCreateVirtualAddresses, 15)                                                           \
	X(aiuLaunchScheduleCompute, 16)                                                            \
	X(aiuPrepareDMAs, 18)                                                                      \
	X(aiuPrepareAndSyncRDMA, 19)                                                               \
	X(aiuClearCache, 20)                                                                       \
	X(aiuPreloadCache, 21)                                                                     \
	X(aiuPostRDMAKeys, 24)                                                                     \
	X(aiuFetchRDMAKeys, 26)                                                                    \
	X(aiuUpdateRDMACBs, 27)                                                                    \
	X(aiuCheckRDMADeadlock, 29)                                                                \
	X(aiuFileTransferDtoF, 30)                                                                 \
	X(aiuFileTransferMtoF, 31)                                                                 \
	X(aiuFileTransferFtoD, 32)                                                                 \
	X(aiuFileTransferFtoM, 33)                                                                 \
	X(aiuClockCalibration, 36)                                                                 \
	X(aiuCompileGraph, 37)
#define AIU_DECLARE(name, cbid) AIU_EXPORT int name(uint64_t what, uint64_t nanoseconds);
AIU_PLAIN_CALLS(AIU_DECLARE)

/* Wait for every rank. */
AIU_EXPORT int aiuRDMABarrier1(void);
AIU_EXPORT int aiuRDMABarrier2(void);
AIU_EXPORT int aiuRDMABarrier3(void);

#ifdef __cplusplus
}
#endif
#endif
