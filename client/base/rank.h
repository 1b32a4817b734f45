// Ranks by what they count; internal/rank has the same types in Go. A world rank is what callers, messages for people and the abort
// word name. A local rank is a place in what a node keeps of a group: rank lines, heaps, bits of a mask. The kernels know the ranks of
// one node only, as plain ints.
//
// One is made of the other by a comm (Comm::worldOf, Comm::localOf), which knows how its ranks lie on nodes, and nowhere else.
#ifndef RAILHEAD_CLIENT_BASE_RANK_H_
#define RAILHEAD_CLIENT_BASE_RANK_H_

#include <stdint.h>

namespace railhead::client {

enum class WorldRank : int32_t {};
enum class LocalRank : int32_t {};

constexpr WorldRank kNoWorldRank{-1};
constexpr LocalRank kNoLocalRank{-1};

// For texts, and for indices.
constexpr int32_t number(WorldRank r) { return static_cast<int32_t>(r); }
constexpr int32_t number(LocalRank r) { return static_cast<int32_t>(r); }

// Sets are of local ranks: bit r is rank r.
constexpr uint64_t bitOf(LocalRank r) { return uint64_t{1} << number(r); }
constexpr LocalRank lowestOf(uint64_t mask) { return mask == 0 ? kNoLocalRank : LocalRank{__builtin_ctzll(mask)}; }

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_RANK_H_
