#include "comm/thread_group.h"

#include <stdio.h>

#include "base/error.h"
#include "comm/comm.h"

namespace railhead::client {

namespace {

thread_local ThreadGroup* group = nullptr;

}  // namespace

ThreadGroup* threadGroup() { return group; }
void setThreadGroup(ThreadGroup* of) { group = of; }

bool inGroup() { return group != nullptr && group->depth > 0; }

rh_result failGroup(rh_result result) {
  if (group->failed == RH_OK) {
    group->failed = result;
    snprintf(group->message, sizeof group->message, "%s", rh_last_error_message());
  }
  return result;
}

rh_result refuseInGroup(const char* operation) {
  if (!inGroup()) return RH_OK;
  return failGroup(fail(RH_ERR_INVALID_ARGUMENT, "%s: cannot be called between rh_group_start and rh_group_end", operation));
}

rh_result checkNoneNoted(const Comm* comm, const char* operation) {
  const int32_t noted = __atomic_load_n(&comm->noted, __ATOMIC_RELAXED);
  if (noted == 0) return checkNotCapturing(comm, operation);
  return fail(RH_ERR_BUSY, "%s: rank %d: a group that has not ended has noted %d calls on this comm; call rh_group_end first", operation,
              number(comm->rank), noted);
}

}  // namespace railhead::client
