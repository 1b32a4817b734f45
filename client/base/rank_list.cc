#include "base/rank_list.h"

#include "base/error.h"

namespace railhead::client {

rh_result checkRankList(const char* operation, int32_t rank, const char* argument, const int32_t* ranks, int32_t capacity) {
  if (capacity < 0 || (ranks == nullptr && capacity != 0)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: capacity %d of %s, which is %s; give an array of that many ranks, or NULL and 0 for the "
                "count alone", operation, rank, capacity, argument, ranks == nullptr ? "NULL" : "not NULL");
  }
  return RH_OK;
}

int32_t listRanks(uint64_t mask, int32_t* ranks, int32_t capacity) {
  int32_t count = 0;
  for (; mask != 0; mask &= mask - 1, count++) {
    if (count < capacity) ranks[count] = __builtin_ctzll(mask);
  }
  return count;
}

rh_result giveRanks(const char* operation, int32_t rank, uint64_t mask, int32_t* ranks, int32_t capacity, int32_t* count) {
  if (count == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: count is NULL", operation, rank);
  const rh_result result = checkRankList(operation, rank, "ranks", ranks, capacity);
  if (result == RH_OK) *count = listRanks(mask, ranks, capacity);
  return result;
}

}  // namespace railhead::client
