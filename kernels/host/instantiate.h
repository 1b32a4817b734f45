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
constexpr void setType(Type type, KernelSet* set) {
  setReductions<T, Isa>(indexOf(type), set->collectives);
  setCopies<Isa>(indexOf(type), set->collectives);
  set->alone[indexOf(type)] = reduceAlone<T, Isa>;
}

template <class Isa>
constexpr KernelSet makeKernelSet(const char* isa) {
  KernelSet set{};
  set.isa = isa;
  setType<float, Isa>(Type::kF32, &set);
  setType<BF16, Isa>(Type::kBF16, &set);
  setType<double, Isa>(Type::kF64, &set);
  setType<F16, Isa>(Type::kF16, &set);
  setType<E4M3, Isa>(Type::kE4M3, &set);
  setType<E5M2, Isa>(Type::kE5M2, &set);
  setType<int8_t, Isa>(Type::kI8, &set);
  setType<uint8_t, Isa>(Type::kU8, &set);
  setType<int32_t, Isa>(Type::kI32, &set);
  setType<int64_t, Isa>(Type::kI64, &set);
  setType<uint64_t, Isa>(Type::kU64, &set);
  set.barrier = barrier<Isa>;
  set.transfers = pipe::transfers<Isa>;
  set.rows = EpRowsOf<Isa>::set();
  return set;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
