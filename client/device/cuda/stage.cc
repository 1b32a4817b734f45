// Large buffers in no window. Kernels send them in pieces of an inbox's slot, and packets twice as many bytes. Above a size that the plans say, it is faster to
// copy them to a window of the library and back.
//
// The window needs no flags of its own. A zero-copy kernel ends once all ranks have ended theirs (meetBlocksOf), so what a rank copies to its window after
// it is read by nobody, and its results are complete. Other ranks store into the window only after this rank's next kernel has begun.
#include <algorithm>

#include "device/cuda/cuda_comm.h"
#include "device/cuda/launch.h"

namespace railhead::client::cuda {

namespace {

constexpr uint64_t kElements = 128;  // a piece is a multiple of that many, so that its parts begin at multiples of 128 bytes

// How a call is cut. Every rank cuts it in the same way.
struct Pieces {
  uint64_t parts;  // of send: the ranks' parts of a reduce-scatter
  uint64_t count;  // elements of a part
  uint64_t each;   // of a part in a piece
  uint64_t size;   // bytes of an element
};

Pieces cut(const Comm* comm, const Operation& o) {
  Pieces p = {o.op == RHW_OP_REDUCE_SCATTER ? static_cast<uint64_t>(comm->worldSize) : 1, o.count, 0, host::bytesOf(static_cast<host::Type>(o.dtype))};
  const uint64_t most = onCuda(comm)->stageBytes / (p.parts * p.size * kElements) * kElements;
  const uint64_t pieces = (p.count + most - 1) / most, even = (p.count + pieces - 1) / pieces;
  p.each = std::min((even + kElements - 1) / kElements * kElements, most);
  return p;
}

}  // namespace

bool runInStage(Comm* comm, const CollectiveCall& c, CUfunction kernel, Grid grid, const gpu::Call& like, Queue on, Failure* why) {
  const CudaComm& of = *onCuda(comm);
  const Operation& o = c.operation;
  const Pieces p = cut(comm, o);
  const auto* send = static_cast<const char*>(o.send);
  auto* recv = static_cast<char*>(o.recv);
  char* stage = comm->deviceHeap(comm->localRank) + of.stageOffset;
  gpu::WindowCall w;
  w.call = like;
  for (const LocalRank r : comm->localRanks()) w.windows.send[number(r)] = w.windows.recv[number(r)] = comm->deviceHeap(r) + of.stageOffset;
  for (uint64_t first = 0; first < p.count; first += p.each) {
    const uint64_t count = std::min(p.each, p.count - first), bytes = count * p.size;
    for (uint64_t part = 0; part < p.parts; part++) {
      if (!copy(of, stage + part * bytes, send + (part * p.count + first) * p.size, bytes, on.stream, why)) return false;
    }
    w.call.count = count;
    w.call.detail = first + 2;  // all ranks run the same piece
    w.call.recv = recv + first * p.size;  // a reduce-scatter stores its result there; an all-reduce in the windows
    if (!launch(onCuda(comm), kernel, grid, &w, on, why)) return false;
    if (o.op == RHW_OP_ALL_REDUCE && !copy(of, recv + first * p.size, stage, bytes, on.stream, why)) return false;
  }
  return true;
}

}  // namespace railhead::client::cuda
