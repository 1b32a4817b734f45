// Offsets of the parts of a control segment (rhw_parts). The daemon lays out the segment and writes the offsets into its header.
#ifndef RAILHEAD_CLIENT_COMM_PARTS_H_
#define RAILHEAD_CLIENT_COMM_PARTS_H_

#include <stdint.h>

#include "wire.h"

namespace railhead::client {

// Checks parts, which another process wrote, for a segment of that many bytes and local ranks. nullptr: each part is large enough and
// inside the segment. Otherwise says what is wrong.
const char* checkParts(const rhw_parts& parts, uint32_t localSize, uint64_t bytes);

// Element i of a part.
template <class T>
T* elementOf(char* control, const rhw_part& part, int i) {
  return reinterpret_cast<T*>(control + part.offset + static_cast<uint64_t>(i) * part.stride);
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_PARTS_H_
