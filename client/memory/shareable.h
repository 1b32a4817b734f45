// Whether other processes can map a piece of memory of this process.
#ifndef RAILHEAD_CLIENT_MEMORY_SHAREABLE_H_
#define RAILHEAD_CLIENT_MEMORY_SHAREABLE_H_

#include <stdint.h>

#include "base/rank.h"
#include "railhead.h"
#include "wire.h"

namespace railhead::client {

// The answer for a piece of memory.
struct Shareable {
  int fd = -1;                   // passes the file or allocation to other ranks; the owner closes it; -1 = it has none
  bool byHandle = false;         // a handle does: others map the memory at addresses that they do not choose
  uint8_t handle[RHW_HANDLE] = {};
  char reason[RHW_REASON] = {};  // neither: why the memory cannot be shared, as a sentence that says what to do
  uint64_t offset = 0;           // offset of the memory in the file or allocation
  uint64_t allocationBytes = 0;  // of a device's memory: of the whole allocation; else 0

  bool can() const { return fd >= 0 || byHandle; }
};

// Checks the memory that config names; the values of config are in range. Seals a memfd against shrinking if possible, so that no
// process can truncate it while others map it. Fails with INVALID_ARGUMENT if config contradicts the mapping. rank is for messages.
rh_result findShareable(WorldRank rank, const rh_register_config& config, Shareable* out);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_SHAREABLE_H_
