// Rings: the order of ranks, and the pipes that a ring uses.
#ifndef RAILHEAD_KERNELS_RING_H_
#define RAILHEAD_KERNELS_RING_H_

#include "railhead/exchange/pipes.h"

namespace railhead {

// How chunks are sent. kSimple: in slots of pipes, a tail after each (pipes.h). kLL: in words that carry their own flag (ll_pipes.h),
// which takes fewer cache lines for small chunks and twice the bytes for large ones.
enum class RingProtocol : uint8_t { kSimple = 0, kLL = 1 };

// The ring of an operation. It is not checked here: it must be the same on all ranks, order[0 .. world size - 1] must contain every rank
// once, and channels must be 1 to kMaxRingChannels. order is fixed for a group, since an LL pipe belongs to two neighbours; channels and
// protocol may change from call to call.
struct RingPlan {
  uint8_t order[kMaxWorldSize];  // order[i]: the rank at position i; position i sends to position i + 1, the last one to the first
  int channels;
  RingProtocol protocol;
};

// The ranks in rank order, one channel.
static inline RingPlan ringInRankOrder(int worldSize) {
  RingPlan plan = {{}, 1, RingProtocol::kSimple};
  for (int r = 0; r < worldSize; r++) plan.order[r] = static_cast<uint8_t>(r);
  return plan;
}

// Channels split the payload. Channels 0 and 2 run forward, 1 and 3 backward, so that both directions of a link are used; 2 and 3 use the
// second set of pipes. With two ranks both directions lead to the same neighbour: each direction then has its own set of pipes, and there
// are at most two channels.
static inline int ringChannels(const RingPlan& plan, int worldSize) {
  const int most = worldSize == 2 ? kPipeSets : kMaxRingChannels;
  return plan.channels < most ? plan.channels : most;
}
static inline int ringPipeSet(int channel, int worldSize) {
  if (mutated(Mutant::kRingChannelsShareAPipe)) return kMessages;
  return worldSize == 2 ? channel : channel / 2;
}

// A rank's position in the ring of a channel. Positions count in the direction of the channel.
struct RingPlace {
  RingPlace(const RingPlan& of, int channel, int rank, int worldSize) : plan(of), n(worldSize), backward(channel % 2 != 0) {
    while (at(place) != rank) place++;
  }
  // The rank at position p, which is -n or more.
  int at(int p) const {
    p = (p + n) % n;
    return plan.order[backward ? n - 1 - p : p];
  }
  int next() const { return at(place + 1); }
  int before() const { return at(place - 1); }

  const RingPlan& plan;
  const int n;
  const bool backward;
  int place = 0;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_RING_H_
