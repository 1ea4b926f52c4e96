/* Device memory: addresses and sizes, no contents. */
#pragma once

#include <cstdint>

namespace vaiu {

uint64_t memory_take(uint64_t bytes);
/* The size it had, 0 if it is none of ours. */
uint64_t memory_give_back(uint64_t address);
/* An activity record of an allocation or a release, from `start` to now. */
void memory_report(uint32_t what, uint64_t address, uint64_t bytes, uint64_t start,
		   uint32_t correlation);

} // namespace vaiu
