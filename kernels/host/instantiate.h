// Makes a KernelSet for an instruction set. Included once by each host/isa_*.cc, which sets the compiler's target first.
#ifndef RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
#define RAILHEAD_KERNELS_HOST_INSTANTIATE_H_

#include "host/ep_rows.h"
#include "host/kernel_set.h"
#include "host/run_kernels.h"

namespace railhead::host {

template <class T, class Isa>
constexpr void setType(KernelSet* set) {
  set->elements[indexOf(kTypeOf<T>)] = RunKernelsOf<T, Isa>::set();
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
  set.rows = EpRowsOf<Isa>::set();
  return set;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
