// Whether other processes can map memory of this one.
#ifndef RAILHEAD_CLIENT_MEMORY_SHAREABLE_H_
#define RAILHEAD_CLIENT_MEMORY_SHAREABLE_H_

#include <stdint.h>

#include "railhead.h"
#include "wire.h"

namespace railhead::client {

// The answer for a piece of memory.
struct Shareable {
  int fd = -1;                   // of the file that the memory is mapped from; the holder closes it; -1 = it cannot be shared,
  char reason[RHW_REASON] = {};  // and why, as a sentence that says what to do
  uint64_t offset = 0;           // of the memory in the file
};

// Looks at the memory that config names, whose values are in range. A memfd is sealed against shrinking where it can be and is
// not yet: after that nobody can cut it short beneath the others.
// Fails where config says what is not so (INVALID_ARGUMENT). rank is for error texts.
rh_result findShareable(int32_t rank, const rh_register_config& config, Shareable* out);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_SHAREABLE_H_
