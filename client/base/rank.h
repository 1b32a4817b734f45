// The two kinds of rank; internal/rank has the same types in Go. A world rank numbers the whole group: callers, messages and the
// abort word use it. A local rank numbers the ranks of one node: rank lines, heaps and bits of a mask use it. The kernels know only
// the ranks of one node, as plain ints.
//
// Only a comm converts one into the other (Comm::worldOf, Comm::localOf), because it knows on which node each rank is.
#ifndef RAILHEAD_CLIENT_BASE_RANK_H_
#define RAILHEAD_CLIENT_BASE_RANK_H_

#include <stdint.h>

namespace railhead::client {

enum class WorldRank : int32_t {};
enum class LocalRank : int32_t {};

constexpr WorldRank kNoWorldRank{-1};
constexpr LocalRank kNoLocalRank{-1};

// For messages and array indices.
constexpr int32_t number(WorldRank r) { return static_cast<int32_t>(r); }
constexpr int32_t number(LocalRank r) { return static_cast<int32_t>(r); }

// Sets hold local ranks: bit r is rank r.
constexpr uint64_t bitOf(LocalRank r) { return uint64_t{1} << number(r); }
constexpr LocalRank lowestOf(uint64_t mask) { return mask == 0 ? kNoLocalRank : LocalRank{__builtin_ctzll(mask)}; }

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_RANK_H_
