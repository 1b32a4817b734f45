// Sets of ranks in results and in messages. The client keeps them as sets of local ranks; callers and readers get world ranks, in ascending
// order: lists, so that a set has no size limit of its own.
#ifndef RAILHEAD_CLIENT_COMM_RANK_LIST_H_
#define RAILHEAD_CLIENT_COMM_RANK_LIST_H_

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "railhead.h"

namespace railhead::client {

// Refuses a NULL array with a capacity other than 0, and a negative capacity. argument names the array in the message.
rh_result checkRankList(const Comm* comm, const char* operation, const char* argument, const int32_t* ranks, int32_t capacity);

// Writes the world ranks of a set, at most capacity of them. Returns how many the set has.
int32_t listRanks(const Comm* comm, LocalRankSet set, int32_t* ranks, int32_t capacity);

// Checks the array and writes the list, for a call whose result is a set.
rh_result giveRanks(const Comm* comm, const char* operation, LocalRankSet set, int32_t* ranks, int32_t capacity, int32_t* count);

// Room for any list of ranks: at most 43 numbers of 5 digits, as of three consecutive ranks one is left out.
constexpr size_t kRanksText = 320;

// Writes the world ranks of a set as "2" or "2, 5 and 7"; three or more consecutive ranks as "2, 5-9 and 12".
void formatRanks(const Comm* comm, LocalRankSet set, char* out, size_t size);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_RANK_LIST_H_
