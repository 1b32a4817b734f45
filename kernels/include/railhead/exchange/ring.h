// Rings: who follows whom, and over which pipes.
#ifndef RAILHEAD_KERNELS_RING_H_
#define RAILHEAD_KERNELS_RING_H_

#include "railhead/exchange/pipes.h"

namespace railhead {

// How chunks travel: kSimple in slots of pipes (pipes.h), a tail behind each; kLL in words that carry their own flag (ll_pipes.h):
// fewer cache lines for small chunks, twice the bytes for large ones.
enum class RingProtocol : uint8_t { kSimple = 0, kLL = 1 };

// How an operation goes around. It must be the same on all ranks, order[0 .. world size - 1] every rank once and channels 1 to
// kMaxRingChannels: nobody here checks. A group keeps its order: an LL pipe belongs to two ranks that follow each other. Calls in
// a row may differ in the rest.
struct RingPlan {
  uint8_t order[kMaxWorldSize];  // order[i]: the rank at place i; place i sends to place i + 1, the last one to the first
  int channels;
  RingProtocol protocol;
};

// Ranks in their order, one channel.
static inline RingPlan ringInRankOrder(int worldSize) {
  RingPlan plan = {{}, 1, RingProtocol::kSimple};
  for (int r = 0; r < worldSize; r++) plan.order[r] = static_cast<uint8_t>(r);
  return plan;
}

// Channels take a part of the payload each. Channels 0 and 2 go forward, 1 and 3 backward, so that both directions of a link
// work; 2 and 3 use the second set of pipes. Of two ranks both directions lead to the same one: a set for each direction then,
// and two channels at most.
static inline int ringChannels(const RingPlan& plan, int worldSize) {
  const int most = worldSize == 2 ? kPipeSets : kMaxRingChannels;
  return plan.channels < most ? plan.channels : most;
}
static inline int ringPipeSet(int channel, int worldSize) {
  if (mutated(Mutant::kRingChannelsShareAPipe)) return kMessages;
  return worldSize == 2 ? channel : channel / 2;
}

// A channel's ring as a rank sees it. Places count in the direction of the channel.
struct RingPlace {
  RingPlace(const RingPlan& of, int channel, int rank, int worldSize) : plan(of), n(worldSize), backward(channel % 2 != 0) {
    while (at(place) != rank) place++;
  }
  // The rank at a place, which may be any number from -n on.
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
