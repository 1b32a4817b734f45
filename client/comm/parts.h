// Where the parts of a control segment lie (rhw_parts): the daemon has laid it out, and says so in the segment's header.
#ifndef RAILHEAD_CLIENT_COMM_PARTS_H_
#define RAILHEAD_CLIENT_COMM_PARTS_H_

#include <stdint.h>

#include "wire.h"

namespace railhead::client {

// What is wrong with parts of a segment of so many bytes and local ranks that another process has written; nullptr = each has what
// this library needs of it, and lies inside.
const char* checkParts(const rhw_parts& parts, uint32_t localSize, uint64_t bytes);

// Element number i of a part.
template <class T>
T* elementOf(char* control, const rhw_part& part, int i) {
  return reinterpret_cast<T*>(control + part.offset + static_cast<uint64_t>(i) * part.stride);
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_PARTS_H_
