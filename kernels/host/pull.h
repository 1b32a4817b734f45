// Pull: zero-copy between windows. It declines if a rank's buffers are in no window, which the ranks tell each other in the first exchange.
#ifndef RAILHEAD_KERNELS_HOST_PULL_H_
#define RAILHEAD_KERNELS_HOST_PULL_H_

#include "host/run_kernel.h"
#include "railhead/collectives/all_to_all.h"
#include "railhead/collectives/allgather.h"
#include "railhead/collectives/allreduce_pull.h"
#include "railhead/collectives/reduce_scatter.h"

namespace railhead::host::pull {

// zeroCopy: whether every rank has offered its buffers. Without meaning where the operation stopped.
static inline Outcome declinedUnless(bool zeroCopy, Outcome outcome) {
  outcome.declined = outcome.stop == Stop::kNone && !zeroCopy;
  return outcome;
}

inline Outcome allReduce(const KernelCall& c) {
  bool zeroCopy = true;
  const Outcome outcome = reduceOverExchange(
      c, [&](auto& exchange, const auto& e) { allReducePull(exchange, e, c.sendOffer, c.recvOffer, c.count, &zeroCopy); });
  return declinedUnless(zeroCopy, outcome);
}

inline Outcome reduceScatter(const KernelCall& c) {
  bool zeroCopy = true;
  const Outcome outcome = reduceOverExchange(
      c, [&](auto& exchange, const auto& e) { reduceScatterPull(exchange, e, c.sendOffer, out(c), c.count, &zeroCopy); });
  return declinedUnless(zeroCopy, outcome);
}

inline Outcome allGather(const KernelCall& c) {
  bool zeroCopy = true;
  const Outcome outcome = copyOverExchange(
      c, [&](auto& exchange, const auto& e) { allGatherPull(exchange, e, c.sendOffer, in(c), out(c), c.bytes, &zeroCopy); });
  return declinedUnless(zeroCopy, outcome);
}

inline Outcome allToAll(const KernelCall& c) {
  bool zeroCopy = true;
  const Outcome outcome = copyOverExchange(
      c, [&](auto& exchange, const auto& e) { allToAllPull(exchange, e, c.sendOffer, out(c), c.bytes, &zeroCopy); });
  return declinedUnless(zeroCopy, outcome);
}

}  // namespace railhead::host::pull

#endif  // RAILHEAD_KERNELS_HOST_PULL_H_
