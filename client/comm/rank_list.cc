#include "comm/rank_list.h"

#include <stdio.h>

#include "base/error.h"

namespace railhead::client {

rh_result checkRankList(const Comm* comm, const char* operation, const char* argument, const int32_t* ranks, int32_t capacity) {
  if (capacity < 0 || (ranks == nullptr && capacity != 0)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: capacity %d of %s, which is %s; give an array of that many ranks, or NULL and 0 for the "
                "count alone", operation, number(comm->rank), capacity, argument, ranks == nullptr ? "NULL" : "not NULL");
  }
  return RH_OK;
}

int32_t listRanks(const Comm* comm, LocalRankSet set, int32_t* ranks, int32_t capacity) {
  int32_t count = 0;
  for (const LocalRank r : set) {
    if (count < capacity) ranks[count] = number(comm->worldOf(r));
    count++;
  }
  return count;
}

rh_result giveRanks(const Comm* comm, const char* operation, LocalRankSet set, int32_t* ranks, int32_t capacity, int32_t* count) {
  if (count == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: count is NULL", operation, number(comm->rank));
  const rh_result result = checkRankList(comm, operation, "ranks", ranks, capacity);
  if (result == RH_OK) *count = listRanks(comm, set, ranks, capacity);
  return result;
}

void formatRanks(const Comm* comm, LocalRankSet set, char* out, size_t size) {
  int32_t ranks[LocalRankSet::kMost];
  const int32_t count = listRanks(comm, set, ranks, LocalRankSet::kMost);
  size_t used = 0;
  out[0] = '\0';
  for (int32_t i = 0; i < count && used < size; i++) {
    int32_t last = i;
    while (last + 1 < count && ranks[last + 1] == ranks[last] + 1) last++;
    if (last < i + 2) last = i;
    const char* separator = used == 0 ? "" : last + 1 == count ? " and " : ", ";
    const int n = last == i ? snprintf(out + used, size - used, "%s%d", separator, ranks[i])
                            : snprintf(out + used, size - used, "%s%d-%d", separator, ranks[i], ranks[last]);
    if (n < 0) return;
    used += static_cast<size_t>(n);
    i = last;
  }
}

}  // namespace railhead::client
