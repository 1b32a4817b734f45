// What the kernels of all algorithms have in common: they set up an exchange or flags, run a protocol over them, and report how it ended.
#ifndef RAILHEAD_KERNELS_HOST_RUN_KERNEL_H_
#define RAILHEAD_KERNELS_HOST_RUN_KERNEL_H_

#include <string.h>

#include <type_traits>

#include "host/elements.h"
#include "host/kernel_set.h"
#include "host/mem.h"
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

// Runs run(exchange), an exchange of tiles of Raw between all ranks.
template <class Raw, class Isa, class Run>
Outcome overExchange(const FlagTeam& team, Run run) {
  Mem<Isa> mem;
  FlagExchange<Mem<Isa>, Raw> exchange(mem, team);
  run(exchange);
  return outcomeOf(exchange);
}

// The same for run(exchange, elements): a reduction of elements of type T, and an operation that copies bytes.
template <class T, class Isa, class Run>
Outcome reduceOverExchange(const KernelCall& c, Run run) {
  return overExchange<RawTile<T>, Isa>(c.team, [&](auto& exchange) { run(exchange, Elements<T, Isa>(c.reduce, c.team.worldSize)); });
}
template <class Isa, class Run>
Outcome copyOverExchange(const KernelCall& c, Run run) {
  return overExchange<typename Bytes<Isa>::Raw, Isa>(c.team, [&](auto& exchange) { run(exchange, Bytes<Isa>()); });
}

// Runs run(mem, flags), a protocol over pipes.
template <class Isa, class Run>
Outcome overFlags(const FlagTeam& team, Run run) {
  Mem<Isa> mem;
  Flags<Mem<Isa>> flags(mem, team);
  run(mem, flags);
  return outcomeOf(flags);
}

// Rings and trees take longest to compile, and reduce only if a caller forces them or has measured that they are faster. So those of integers
// and f64 are compiled once, for the portable instruction set, and the other sets use these kernels (own and portableKernel). f32 is usual,
// and the smaller floats are converted, which takes several times as long without wide vectors.
template <class T, class Isa>
constexpr bool own = Isa::kIsPortable || std::is_same_v<typename AccumulatorOf<T>::type, float>;
template <class T>
Kernel portableKernel(Algorithm algorithm, Collective collective) {
  return kPortableKernels.collectives[algorithm][collective][indexOf(kTypeOf<T>)];
}

// Runs a broadcast, run(mem, flags, buffer): the root's buffer is send, that of every other rank recv. Then copies send to recv on the root.
template <class Isa, class Run>
Outcome broadcastOverFlags(const KernelCall& c, Run run) {
  const bool isRoot = c.team.rank == c.root;
  char* buffer = isRoot ? const_cast<char*>(in(c)) : out(c);
  const Outcome outcome = overFlags<Isa>(c.team, [&](auto& mem, auto& flags) { run(mem, flags, buffer); });
  if (isRoot && outcome.stop == Stop::kNone && c.send != c.recv && c.bytes > 0) memcpy(c.recv, c.send, c.bytes);
  return outcome;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_RUN_KERNEL_H_
