// The kernels of all algorithms and operations.
#include "host/kernels.h"

#include <string.h>

#include "host/kernel_table.h"
#include "host/run_kernel.h"
#include "railhead/collectives/barrier.h"

namespace railhead::host {

extern constexpr Kernels kKernels = makeKernels();

Outcome barrier(const FlagTeam& team) {
  return overExchange(team, Runs(), [](auto& exchange) { railhead::barrier(exchange); });
}

Outcome transfers(const FlagTeam& team, Transfer* list, int n) { return pipe::transfers(team, list, n); }

void reduceAlone(const RunKernels& elements, const ReduceOp& op, const void* send, void* recv, size_t count) {
  if (op.kind == Reduction::kPreMulSum) {
    elements.scale(op, static_cast<const char*>(send), static_cast<char*>(recv), count);
  } else if (send != recv && count > 0) {
    memcpy(recv, send, count * elements.elementBytes);
  }
}

}  // namespace railhead::host
