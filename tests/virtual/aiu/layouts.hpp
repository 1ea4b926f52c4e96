/* Activities to bytes, in one of several layouts. */
#pragma once

#include "vaiu.hpp"

namespace vaiu {

/* Whether VAIU_LAYOUT names one. */
bool layout_known(const std::string &name);
/* The record's bytes. */
std::vector<uint8_t> layout_encode(const Activity &activity);
/* Bytes of the record at `at`, 0 if its kind is none that is written here. */
size_t layout_size(uint8_t kind);

} // namespace vaiu
