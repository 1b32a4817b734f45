#include "comm/set_up.h"

#include <string.h>

#include "base/utf8.h"

namespace railhead::client {

uint64_t endedCalls(const Comm* comm) {
  // Acquire: the daemon wrote the outcomes up to this number before it.
  return __atomic_load_n(&comm->ledger()->ended, __ATOMIC_ACQUIRE);
}

bool takeOutcome(const Comm* comm, uint64_t before, uint32_t op, rhw_outcome* out) {
  const uint64_t ended = endedCalls(comm);
  if (ended == before) return false;
  // The daemon that wrote it is gone, and the next daemon ends no call without this rank, so the outcome is not overwritten meanwhile.
  *out = comm->ledger()->outcomes[ended % 2];
  if (out->op != op) return false;
  out->text[sizeof out->text - 1] = '\0';
  if (!validUtf8(out->text, strlen(out->text))) out->text[0] = '\0';  // another rank overwrote it
  return true;
}

}  // namespace railhead::client
