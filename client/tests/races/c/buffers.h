// Buffers of expert parallelism in scenarios: their config, and a dispatch with its memory. Each rank has one expert, and a token goes to
// one expert. A combine returns the tokens as they were sent.
#ifndef RAILHEAD_RACES_BUFFERS_H_
#define RAILHEAD_RACES_BUFFERS_H_

#include "scenario.h"

namespace world {

constexpr uint32_t kHidden = 4, kMostTokens = 4, kMostRows = kMostTokens * kMaxWorld;

inline rh_ep_config bufferConfig(int world, uint32_t onDead = RH_EP_DEAD_FAIL) {
  rh_ep_config c = RH_EP_CONFIG_INIT;
  c.mode = oneIn(2) ? RH_EP_LL : RH_EP_HT;
  c.max_tokens_per_rank = kMostTokens;
  c.hidden = kHidden;
  c.num_experts = static_cast<uint32_t>(world);
  c.topk = 1;
  c.dtype = c.wire_dtype = c.combine_dtype = RH_F32;
  c.on_dead = onDead;
  return c;
}

// The memory of a dispatch and of its combine. It stays where it is: calls that run later use it.
struct Tokens {
  uint32_t n;
  int64_t expert[kMostTokens];
  float x[kMostTokens][kHidden], out[kMostTokens][kHidden];
  float rows[kMostRows][kHidden];
  rh_ep_report dispatched, combined;
  int32_t lost[2][kMaxWorld];

  // first: a number that no other dispatch has.
  void fill(uint32_t tokens, int world, int first) {
    n = tokens;
    for (uint32_t t = 0; t < n; t++) {
      expert[t] = static_cast<int64_t>(t) % world;
      for (uint32_t i = 0; i < kHidden; i++) {
        x[t][i] = static_cast<float>(first * 16 + static_cast<int>(t * kHidden + i));
        out[t][i] = -1;
      }
    }
    dispatched = combined = RH_EP_REPORT_INIT;
    dispatched.lost_ranks = lost[0];
    combined.lost_ranks = lost[1];
    dispatched.lost_capacity = combined.lost_capacity = kMaxWorld;
  }
  rh_ep_dispatch_in in(rh_ep_routing* routing = nullptr) const {
    rh_ep_dispatch_in a = RH_EP_DISPATCH_IN_INIT;
    a.x = x;
    a.topk_idx = routing == nullptr ? expert : nullptr;
    a.routing = routing;
    a.num_tokens = n;
    a.hidden = kHidden;
    return a;
  }
  rh_ep_dispatch_out to() {
    rh_ep_dispatch_out a = RH_EP_DISPATCH_OUT_INIT;
    a.layout = RH_EP_FLAT;
    a.capacity = kMostRows;
    a.x = rows;
    a.report = &dispatched;
    return a;
  }
  rh_ep_combine_args back() {
    rh_ep_combine_args a = RH_EP_COMBINE_ARGS_INIT;
    a.y = rows;
    a.y_dtype = a.out_dtype = RH_F32;
    a.out = out;
    return a;
  }
  // In a group of one rank, whose rows are in the order of the tokens.
  void checkRows() const {
    for (uint32_t t = 0; t < n; t++) {
      for (uint32_t i = 0; i < kHidden; i++) {
        if (rows[t][i] != x[t][i]) fail("row %u of a dispatch is %g, not %g", t, static_cast<double>(rows[t][i]), static_cast<double>(x[t][i]));
      }
    }
  }
  // lostMask: the tokens of these experts did not come back, and are 0.
  void checkOut(uint32_t lostMask = 0) const {
    for (uint32_t t = 0; t < n; t++) {
      const bool isLost = (lostMask >> expert[t] & 1) != 0;
      for (uint32_t i = 0; i < kHidden; i++) {
        const float wanted = isLost ? 0 : x[t][i];
        if (out[t][i] != wanted) fail("token %u came back with %g, not %g", t, static_cast<double>(out[t][i]), static_cast<double>(wanted));
      }
    }
  }
};

}  // namespace world

#endif  // RAILHEAD_RACES_BUFFERS_H_
