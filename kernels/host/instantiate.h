// Makes a KernelSet for an instruction set. Included once by each host/isa_*.cc, which sets the compiler's target first.
#ifndef RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
#define RAILHEAD_KERNELS_HOST_INSTANTIATE_H_

#include <string.h>

#include "host/ep_rows.h"
#include "host/kernel_set.h"
#include "host/kernel_table.h"
#include "host/run_kernel.h"
#include "railhead/collectives/barrier.h"

namespace railhead::host {

template <class Isa>
Outcome barrier(const FlagTeam& team) {
  return overExchange<typename Bytes<Isa>::Raw, Isa>(team, [](auto& exchange) { railhead::barrier(exchange); });
}

template <class T, class Isa>
void reduceAlone(const ReduceOp& op, const void* send, void* recv, size_t count) {
  if (op.kind != Reduction::kPreMulSum) {
    if (send != recv && count > 0) memcpy(recv, send, count * sizeof(T));
    return;
  }
  const Elements<T, Isa> e(op, 1);
  const auto* from = static_cast<const char*>(send);
  for (size_t tile = 0; tile * e.kElements < count; tile++) e.store(static_cast<char*>(recv), tile, count, e.load(from, tile, count));
}

template <class T, class Isa>
constexpr void setType(KernelSet* set) {
  constexpr int type = indexOf(kTypeOf<T>);
  setReductions<T, Isa>(type, set->collectives);
  setCopies<Isa>(type, set->collectives);
  set->alone[type] = reduceAlone<T, Isa>;
}

template <class Isa>
constexpr KernelSet makeKernelSet(const char* isa) {
  KernelSet set{};
  set.isa = isa;
  setType<float, Isa>(&set);
  setType<BF16, Isa>(&set);
  setType<double, Isa>(&set);
  setType<F16, Isa>(&set);
  setType<E4M3, Isa>(&set);
  setType<E5M2, Isa>(&set);
  setType<int8_t, Isa>(&set);
  setType<uint8_t, Isa>(&set);
  setType<int32_t, Isa>(&set);
  setType<int64_t, Isa>(&set);
  setType<uint64_t, Isa>(&set);
  set.barrier = barrier<Isa>;
  set.transfers = pipe::transfers<Isa>;
  set.rows = EpRowsOf<Isa>::set();
  return set;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
