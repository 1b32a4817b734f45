#include "host/entry.h"

#include <string.h>

#include "railhead/allreduce_oneshot.h"
#include "railhead/barrier.h"

namespace railhead::host {

namespace {

template <class T>
Stop allReduceOneshot(const Team& team, const void* send, void* recv, size_t count, uint64_t* missing) {
  if (team.worldSize == 1) {
    // memcpy takes no null pointer, not even for nothing.
    if (send != recv && count > 0) memcpy(recv, send, count * sizeof(T));
    return Stop::kNone;
  }
  Target target(team);
  railhead::allReduceOneshot<T>(target, static_cast<const char*>(send), static_cast<char*>(recv), count);
  *missing = target.missing();
  return target.stop();
}

}  // namespace

Stop allReduceOneshotF32(const Team& team, const void* send, void* recv, size_t count, uint64_t* missing) {
  return allReduceOneshot<float>(team, send, recv, count, missing);
}

Stop allReduceOneshotBF16(const Team& team, const void* send, void* recv, size_t count, uint64_t* missing) {
  return allReduceOneshot<BF16>(team, send, recv, count, missing);
}

Stop barrier(const Team& team, uint64_t* missing) {
  Target target(team);
  railhead::barrier(target);
  *missing = target.missing();
  return target.stop();
}

}  // namespace railhead::host
