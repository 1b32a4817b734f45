// Makes a KernelSet for an instruction set. Included once by each host/isa_*.cc, which sets the compiler's target first.
#ifndef RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
#define RAILHEAD_KERNELS_HOST_INSTANTIATE_H_

#include <string.h>

#include "host/elements.h"
#include "host/kernel_set.h"
#include "host/mem.h"
#include "railhead/allreduce_oneshot.h"
#include "railhead/allreduce_pull.h"
#include "railhead/allreduce_twoshot.h"
#include "railhead/barrier.h"
#include "railhead/flag_lane.h"

namespace railhead::host {

template <class T, class Isa>
struct AllReduceOf {
  using Lane = FlagLane<Mem<Isa>, RawTile<T>>;

  static Outcome oneshot(const FlagTeam& team, const void* send, void* recv, size_t count) {
    if (team.worldSize == 1) return copy(send, recv, count);
    Mem<Isa> mem;
    Lane lane(mem, team);
    allReduceOneshot<Elements<T, Isa>>(lane, static_cast<const char*>(send), static_cast<char*>(recv), count);
    return {lane.stop(), lane.missing()};
  }
  static Outcome twoshot(const FlagTeam& team, const void* send, void* recv, size_t count) {
    if (team.worldSize == 1) return copy(send, recv, count);
    Mem<Isa> mem;
    Lane lane(mem, team);
    allReduceTwoshot<Elements<T, Isa>>(lane, static_cast<const char*>(send), static_cast<char*>(recv), count);
    return {lane.stop(), lane.missing()};
  }
  static Outcome pull(const FlagTeam& team, uint64_t send, uint64_t recv, size_t count, bool* zeroCopy) {
    Mem<Isa> mem;
    Lane lane(mem, team);
    *zeroCopy = true;
    if (count > 0) allReducePull<Elements<T, Isa>>(lane, send, recv, count, zeroCopy);
    return {lane.stop(), lane.missing()};
  }
  static constexpr AllReduceSet set() { return {oneshot, twoshot, pull}; }

 private:
  static Outcome copy(const void* send, void* recv, size_t count) {
    if (send != recv) memcpy(recv, send, count * sizeof(T));
    return {Stop::kNone, 0};
  }
};

template <class Isa>
Outcome barrierOf(const FlagTeam& team) {
  Mem<Isa> mem;
  FlagLane<Mem<Isa>, RawTile<float>> lane(mem, team);
  barrier(lane);
  return {lane.stop(), lane.missing()};
}

template <class Isa>
constexpr KernelSet makeKernelSet(const char* isa) {
  return {isa, AllReduceOf<float, Isa>::set(), AllReduceOf<BF16, Isa>::set(), barrierOf<Isa>};
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
