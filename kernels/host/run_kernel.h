// What the kernels of all algorithms have in common: they set up an exchange or flags, run a protocol over them, and report how it ended.
#ifndef RAILHEAD_KERNELS_HOST_RUN_KERNEL_H_
#define RAILHEAD_KERNELS_HOST_RUN_KERNEL_H_

#include <string.h>

#include "host/kernel_set.h"
#include "host/runs.h"
#include "railhead/exchange/flag_exchange.h"

namespace railhead::host {

// The buffers as the protocols take them.
static inline const char* in(const KernelCall& c) { return static_cast<const char*>(c.send); }
static inline char* out(const KernelCall& c) { return static_cast<char*>(c.recv); }

// How an exchange, or flags, ended.
template <class Waiter>
Outcome outcomeOf(const Waiter& w) {
  return {w.stop(), w.missing(), w.difference(), false};
}

// Runs run(exchange), an exchange of runs of tiles between all ranks.
template <class Run>
Outcome overExchange(const FlagTeam& team, const Runs& runs, Run run) {
  RunMem mem(runs);
  FlagExchange<RunMem, Runs::Raw> exchange(mem, team, runs.kTileBytes);
  run(exchange);
  return outcomeOf(exchange);
}

// The same for run(exchange, elements): a reduction, and an operation that copies bytes.
template <class Run>
Outcome reduceOverExchange(const KernelCall& c, Run run) {
  const Runs e(*c.elements, c.reduce, c.team.worldSize);
  return overExchange(c.team, e, [&](auto& exchange) { run(exchange, e); });
}
template <class Run>
Outcome copyOverExchange(const KernelCall& c, Run run) {
  const Runs bytes;
  return overExchange(c.team, bytes, [&](auto& exchange) { run(exchange, bytes); });
}

// Runs run(mem, flags, elements), a protocol over pipes: a reduction, and an operation that copies bytes.
template <class Run>
Outcome overFlags(const FlagTeam& team, const Runs& runs, Run run) {
  RunMem mem(runs);
  Flags<RunMem> flags(mem, team);
  run(mem, flags, runs);
  return outcomeOf(flags);
}
template <class Run>
Outcome reduceOverFlags(const KernelCall& c, Run run) {
  return overFlags(c.team, Runs(*c.elements, c.reduce, c.team.worldSize), run);
}
template <class Run>
Outcome copyOverFlags(const FlagTeam& team, Run run) {
  return overFlags(team, Runs(), run);
}

// Runs a broadcast, run(mem, flags, buffer): the root's buffer is send, that of every other rank recv. Then copies send to recv on the root.
template <class Run>
Outcome broadcastOverFlags(const KernelCall& c, Run run) {
  const bool isRoot = c.team.rank == c.root;
  char* buffer = isRoot ? const_cast<char*>(in(c)) : out(c);
  const Outcome outcome = copyOverFlags(c.team, [&](auto& mem, auto& flags, const auto&) { run(mem, flags, buffer); });
  if (isRoot && outcome.stop == Stop::kNone && c.send != c.recv && c.bytes > 0) memcpy(c.recv, c.send, c.bytes);
  return outcome;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_RUN_KERNEL_H_
