// Sends and receives: kernels on the caller's stream that run any number of them at the same time.
#include <stdlib.h>

#include <algorithm>

#include "base/error.h"
#include "comm/choice.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/launch.h"

namespace railhead::client::cuda {

namespace {

static_assert(gpu::kSendOperation == RHW_OP_SEND, "the signature of a transfer");

CUfunction kernelOf(const Comm* comm, uint32_t op) { return onCuda(comm)->kernels->of(RHW_ALGO_PIPE, op, 0); }

// A group's transfers by pipe: those to peer r are pipe 2 r, those from it 2 r + 1. A kernel takes as many of each pipe as every rank's does, so
// that the kernels of two ranks that have transfers with each other have the same ones.
class Batches {
 public:
  Batches(const Comm* comm, const TransfersCall& c) : comm_(comm), list_(c.list + 2 * c.pairs), n_(c.n) {}

  // Fills in the next kernel's transfers. False: there are none left.
  bool next(gpu::GroupCall* out, Grid* grid) {
    out->transfers = out->units = 0;
    *grid = {1, 32};
    for (int pipe = 0; pipe < 2 * comm_->worldSize; pipe++) add(pipe, out, grid);
    grid->blocks = std::min(grid->blocks, out->units);
    return out->transfers != 0;
  }

 private:
  void add(int pipe, gpu::GroupCall* out, Grid* grid) {
    uint32_t lanes = 0;
    int& from = from_[pipe];
    for (int left = gpu::transfersOfPeer(comm_->worldSize); left > 0 && from < n_; from++) {
      const railhead::Transfer& t = list_[from];
      if (2 * t.peer + (t.sends ? 0 : 1) != pipe) continue;
      const Choice choice = choiceOfTransfer(comm_, t.bytes);
      gpu::Transfer& to = out->list[out->transfers++];
      to = {t.buffer, t.bytes, static_cast<uint8_t>(t.peer), t.sends, static_cast<uint8_t>(t.signature.dtype()), static_cast<uint8_t>(lanesOf(comm_, choice)),
            static_cast<uint16_t>(out->units), 0};
      lanes = std::max(lanes, uint32_t{to.lanes});
      *grid = {std::max(grid->blocks, uint32_t{choice.blocks}), std::max(grid->threads, uint32_t{choice.threads})};
      left--;
    }
    out->units += lanes;
  }

  const Comm* comm_;
  const railhead::Transfer* list_;
  int n_;
  int from_[2 * kMaxWorldSize] = {};  // of each pipe, where to look for its next transfer
};

SignedCall signedOf(const TransfersCall& c) {
  const railhead::Transfer* first = c.n == 1 ? c.list + 2 * c.pairs : nullptr;
  return {c.op, c.details.dtype, c.details.reduction, kNoRoot, first == nullptr ? 0 : first->signature.count, 0, 0, 0};
}

// A send or receive alone.
bool launchOne(const Comm* comm, const TransfersCall& c, uint32_t stream, Queue on, Failure* why) {
  const railhead::Transfer& t = c.list[0];
  const Choice choice = choiceOfTransfer(comm, t.bytes);
  gpu::Call call = callOf(comm, signedOf(c), t.bytes, stream);
  call.send = t.buffer;
  call.recv = t.buffer;
  call.count = t.bytes;
  call.detail = lanesOf(comm, choice);
  call.root = t.peer;
  return launch(onCuda(comm), kernelOf(comm, c.op), {std::min(uint32_t{choice.blocks}, lanesOf(comm, choice)), choice.threads}, &call, on, why);
}

bool launchGroup(const Comm* comm, const TransfersCall& c, uint32_t stream, Queue on, Failure* why) {
  gpu::GroupCall group = {};
  group.call = callOf(comm, signedOf(c), c.bytes, stream);
  Batches batches(comm, c);
  Grid grid;
  while (batches.next(&group, &grid)) {
    if (!launch(onCuda(comm), kernelOf(comm, RHW_OP_GROUP), grid, &group, on, why)) return false;
  }
  return true;
}

// A rank's transfers to itself.
bool copyPairs(const CudaComm& of, const TransfersCall& c, void* on, Failure* why) {
  for (int i = 0; i < c.pairs; i++) {
    if (!copy(of, c.list[2 * i + 1].buffer, c.list[2 * i].buffer, c.list[2 * i].bytes, on, why)) return false;
  }
  return true;
}

bool submit(Comm* comm, const TransfersCall& c, uint32_t stream, Queue on, Failure* why) {
  if (!copyPairs(*onCuda(comm), c, on.stream, why)) return false;
  if (c.n == 0) return true;
  return c.op == RHW_OP_GROUP ? launchGroup(comm, c, stream, on, why) : launchOne(comm, c, stream, on, why);
}

}  // namespace

rh_result admitTransfers(const Comm* comm, const TransfersCall& c) {
  if (c.n == 0 || kernelOf(comm, c.op) != nullptr) return RH_OK;
  return fail(RH_ERR_UNSUPPORTED, "%s: rank %d: there is no kernel for it on a CUDA device; nothing was done", operationName(c.op), number(comm->rank));
}

// As collective(): eager calls have a flight record.
rh_result transfers(Comm* comm, const TransfersCall& c, void* stream) {
  Failure why;
  const bool eager = !c.captured, records = eager && c.n != 0;
  CudaComm* of = onCuda(comm);
  const uint32_t streamNumber = eager ? queues(of, stream) : of->streams.of(stream);
  if (records) {
    comm->runsOn = {streamNumber, 0, 0};
    if (!beginOperation(comm, c.op, c.bytes, c.details, 0)) return whyBroken(comm);
  }
  const bool queued = submit(comm, c, streamNumber, {stream, !eager}, &why);
  if (records) {
    noteChoice(comm, {RHW_ALGO_PIPE, RHW_WHY_ONLY});
    endOperation(comm, RHW_ALGO_PIPE);
    comm->runsOn = {};
  }
  if (queued) return RH_OK;
  return fail(why.result, "%s: rank %d: %s", operationName(c.op), number(comm->rank), why.text);
}

}  // namespace railhead::client::cuda
