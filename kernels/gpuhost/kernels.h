// The GPU kernels as functions of the host, for tests of what launches them where there is no GPU. Each runs a kernel's whole grid as one block of
// one thread. The memory that a Call points to is memory of the host.
#ifndef RAILHEAD_KERNELS_GPUHOST_KERNELS_H_
#define RAILHEAD_KERNELS_GPUHOST_KERNELS_H_

#include "railhead/gpu/launch.h"

namespace railhead::gpuhost {

struct Grid {
  uint32_t blocks, threads;  // threads of a block
};
// grid: what was asked for, which ranks compare.
using Run = void (*)(const gpu::Call* call, Grid grid);

struct HostKernel {
  const char* name;  // of the entry point
  Run run;
};

// The kernels of one source, ended by one without a name.
extern const HostKernel kAllReduces[];
extern const HostKernel kCollectives[];
extern const HostKernel kPipes[];

// nullptr: there is no such kernel.
Run findKernel(const char* name);
// The same of dispatch and combine (ep.cc).
Run findEpKernel(const char* name);

}  // namespace railhead::gpuhost

#endif  // RAILHEAD_KERNELS_GPUHOST_KERNELS_H_
