// Sets of ranks on their way to a caller: lists of world ranks, which hold for any world size.
#ifndef RAILHEAD_CLIENT_RANK_LIST_H_
#define RAILHEAD_CLIENT_RANK_LIST_H_

#include <stdint.h>

#include "railhead.h"

namespace railhead::client {

// Refuses an array that is not there for its capacity. argument names it in the message.
rh_result checkRankList(const char* operation, int32_t rank, const char* argument, const int32_t* ranks, int32_t capacity);

// Writes the ranks of a mask in ascending order as far as they fit, and returns how many there are.
int32_t listRanks(uint64_t mask, int32_t* ranks, int32_t capacity);

// Both, for a call whose result is a set.
rh_result giveRanks(const char* operation, int32_t rank, uint64_t mask, int32_t* ranks, int32_t capacity, int32_t* count);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_RANK_LIST_H_
