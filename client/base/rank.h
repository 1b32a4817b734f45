// The two kinds of rank, and sets of ranks; internal/rank has the same types in Go. A world rank numbers the whole group: callers, messages
// and the abort word use it. A local rank numbers the ranks of one node: rank lines, heaps and sets use it.
//
// Only a comm converts one into the other (Comm::worldOf, Comm::localOf), because it knows on which node each rank is.
//
// The kernels and the device code know only a team: the group's ranks of this node, numbered from 0 by plain ints. That number is the
// local rank: number(local) is passed in, LocalRank{number} and LocalRankSet{mask} are made of what comes out.
#ifndef RAILHEAD_CLIENT_BASE_RANK_H_
#define RAILHEAD_CLIENT_BASE_RANK_H_

#include <stdint.h>

namespace railhead::client {

enum class WorldRank : int32_t {};
enum class LocalRank : int32_t {};

constexpr WorldRank kNoWorldRank{-1};
constexpr LocalRank kNoLocalRank{-1};

// For messages, and for array indices.
constexpr int32_t number(WorldRank r) { return static_cast<int32_t>(r); }
constexpr int32_t number(LocalRank r) { return static_cast<int32_t>(r); }

// A set of local ranks. World ranks have no such sets.
class LocalRankSet {
 public:
  static constexpr int32_t kMost = 64;  // ranks on a node

  constexpr LocalRankSet() = default;
  // Bit r is rank r, as in the control segment and in the kernels.
  explicit constexpr LocalRankSet(uint64_t mask) : mask_(mask) {}
  // The ranks 0 to n-1; n is 1 to kMost.
  static constexpr LocalRankSet first(int32_t n) { return LocalRankSet{~uint64_t{0} >> (kMost - n)}; }

  constexpr uint64_t mask() const { return mask_; }
  constexpr bool empty() const { return mask_ == 0; }
  constexpr int32_t size() const { return __builtin_popcountll(mask_); }
  constexpr bool has(LocalRank r) const { return number(r) >= 0 && number(r) < kMost && (mask_ >> number(r) & 1) != 0; }
  // r is 0 to kMost-1.
  constexpr void add(LocalRank r) { mask_ |= uint64_t{1} << number(r); }
  constexpr LocalRank lowest() const { return empty() ? kNoLocalRank : LocalRank{__builtin_ctzll(mask_)}; }
  constexpr bool operator==(LocalRankSet other) const { return mask_ == other.mask_; }

  // for (const LocalRank r : set) visits the ranks in ascending order.
  class Iterator {
   public:
    explicit constexpr Iterator(uint64_t left) : left_(left) {}
    constexpr LocalRank operator*() const { return LocalRankSet{left_}.lowest(); }
    constexpr Iterator& operator++() {
      left_ &= left_ - 1;
      return *this;
    }
    constexpr bool operator!=(Iterator other) const { return left_ != other.left_; }

   private:
    uint64_t left_;
  };
  constexpr Iterator begin() const { return Iterator{mask_}; }
  constexpr Iterator end() const { return Iterator{0}; }

 private:
  uint64_t mask_ = 0;
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_RANK_H_
