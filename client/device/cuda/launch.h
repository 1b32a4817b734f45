// Kernels and copies on the caller's stream.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_LAUNCH_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_LAUNCH_H_

#include "device/cuda/cuda_comm.h"

namespace railhead::client::cuda {

struct Grid {
  uint32_t blocks, threads;  // threads of a block
};

// Where a call goes: queued on the stream, or captured there.
struct Queue {
  void* stream;
  bool captured;
};

// parameter: of the kernel, whose type the kernel defines.
bool launch(CudaComm* of, CUfunction kernel, Grid grid, void* parameter, Queue on, Failure* why);
bool copy(const CudaComm& of, void* to, const void* from, uint64_t bytes, void* stream, Failure* why);

// What the calls of a comm have in common; signed is the call as ranks compare it. bytes: of its data.
gpu::Call callOf(const Comm* comm, const SignedCall& sign, uint64_t bytes, uint32_t stream);

// Copies the buffers of an all-reduce or reduce-scatter to the comm's window, runs a zero-copy kernel there, and copies the results, all on the
// stream. In pieces, if the window is smaller. like: the call, as of buffers elsewhere.
bool runInStage(Comm* comm, const CollectiveCall& c, CUfunction kernel, Grid grid, const gpu::Call& like, Queue on, Failure* why);

// Queues a call that is copied between two meetings. meeting and grid are the barrier's; call is the call as ranks compare it.
bool meetAndCopy(const Comm* comm, const CollectiveCall& c, CUfunction meeting, Grid grid, gpu::Call* call, Queue on, Failure* why);

// Where kernels and copies find what a rank's offer names, in this process's addresses.
char* partOf(const Comm* comm, uint64_t offer, LocalRank r);

// How many lanes a transfer gets by its choice, whose blocks are those of a kernel with transfers to and from all other ranks.
uint32_t lanesOf(const Comm* comm, const Choice& choice);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_LAUNCH_H_
