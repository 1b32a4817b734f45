// Sets of ranks as results of a call: lists of world ranks, so that a set has no size limit of its own.
#ifndef RAILHEAD_CLIENT_RANK_LIST_H_
#define RAILHEAD_CLIENT_RANK_LIST_H_

#include <stdint.h>

#include "railhead.h"

namespace railhead::client {

// Refuses a NULL array with a capacity other than 0, and a negative capacity. argument names the array in the message.
rh_result checkRankList(const char* operation, int32_t rank, const char* argument, const int32_t* ranks, int32_t capacity);

// Writes the ranks of a mask in ascending order, at most capacity of them. Returns how many the mask has.
int32_t listRanks(uint64_t mask, int32_t* ranks, int32_t capacity);

// Checks the array and writes the list, for a call whose result is a set.
rh_result giveRanks(const char* operation, int32_t rank, uint64_t mask, int32_t* ranks, int32_t capacity, int32_t* count);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_RANK_LIST_H_
