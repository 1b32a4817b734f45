// The data path: a checked call becomes a kernel on the caller's stream, or copies between two kernels. It takes no lock and allocates nothing.
#include <string.h>

#include <algorithm>

#include "base/element_types.h"
#include "base/error.h"
#include "comm/choice.h"
#include "device/cuda/copies.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/launch.h"
#include "memory/window.h"

namespace railhead::client::cuda {

// A kernel and a stream know their context, so the driver is first asked without a look at the current one, which mostly is the right one. If it
// refuses, nothing was launched. Not in a capture, which a refused call may invalidate.
bool launch(CudaComm* of, CUfunction kernel, Grid grid, void* parameter, Queue on, Failure* why) {
  const auto& launchKernel = of->context.driver->cuLaunchKernelEx;
  CUlaunchConfig config = {};
  config.gridDimX = grid.blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = grid.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = static_cast<CUstream>(on.stream);
  void* parameters[] = {parameter};
  const bool tries = !of->enters && !on.captured && !isDefaultStream(on.stream);
  if (tries && __builtin_expect(launchKernel.call(&config, kernel, parameters, nullptr) == CUDA_SUCCESS, 1)) return true;
  const Entered entered(of->context);
  of->enters = entered.pushed();  // the next call mostly comes from the same thread
  return launchKernel(why, &config, kernel, parameters, nullptr);
}

bool copy(const CudaComm& of, void* to, const void* from, uint64_t bytes, void* stream, Failure* why) {
  if (bytes == 0 || to == from) return true;
  const Entered entered(of.context);
  return of.context.driver->cuMemcpyAsync(why, reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, static_cast<CUstream>(stream));
}

gpu::Call callOf(const Comm* comm, const SignedCall& sign, uint64_t bytes, uint32_t stream) {
  gpu::Call call = {};
  call.team = onCuda(comm)->team;
  call.team.limitNs = static_cast<uint64_t>(limitNs(comm, bytes));
  call.call = sign;
  call.root = -1;
  call.stream = stream;
  return call;
}

uint32_t lanesOf(const Comm* comm, const Choice& choice) {
  const uint32_t pipes = 2 * static_cast<uint32_t>(comm->worldSize - 1);
  return std::clamp(choice.blocks / pipes, uint32_t{1}, uint32_t{gpu::kMaxLanes});
}

// Kernels use this rank's own registered memory in the device heap too, as the other ranks do: a kernel must not use memory by two of its mappings.
char* partOf(const Comm* comm, uint64_t offer, LocalRank r) {
  const uint64_t number = offer >> kOfferRegionShift, offset = offer & ((uint64_t{1} << kOfferRegionShift) - 1);
  if (number == 0) return comm->deviceHeap(r) + offset;
  const Region& region = *comm->regions[number];
  return (region.placed.apart != 0 ? region.parts[client::number(r)] : comm->deviceHeap(r) + region.placed.offset) + offset;
}

namespace {

// The kernel of a call.
struct Selected {
  CUfunction function = nullptr;  // nullptr = there is none. Of copies: that of a meeting
  Choice choice = {RHW_ALGO_AUTO, RHW_WHY_NONE};
  bool stages = false;  // in the comm's own window

  bool copies() const { return choice.algo == RHW_ALGO_COPY; }
  bool pulls() const { return choice.algo == RHW_ALGO_PULL && !stages; }
};

// Kernels access the buffers of other ranks that an all-reduce reads and writes, a reduce-scatter reads, and the other operations write. These
// buffers must lie in windows. Whether they are at the same offsets on all ranks, the kernel finds out.
bool areOffered(const CollectiveCall& c) {
  const uint32_t op = c.operation.op;
  const bool reads = op == RHW_OP_ALL_REDUCE || op == RHW_OP_REDUCE_SCATTER, writes = op != RHW_OP_REDUCE_SCATTER;
  return (!reads || c.sendOffer != kNoOffset) && (!writes || c.recvOffer != kNoOffset);
}

constexpr Choice kOfBarrier = {RHW_ALGO_AUTO, RHW_WHY_NONE, 1, 64};  // a warp that waits, and control's, which sends at once

Selected select(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  const Kernels& kernels = *onCuda(comm)->kernels;
  const auto dtype = static_cast<uint32_t>(o.dtype);
  const CUfunction meeting = kernels.of(kOfBarrier.algo, RHW_OP_BARRIER, dtype);
  if (o.op == RHW_OP_BARRIER) return {meeting, kOfBarrier};
  Choice zeroCopy = c.zeroCopy;
  if (zeroCopy.algo == RHW_ALGO_COPY) {
    if (canCopy(comm, c)) return {meeting, zeroCopy};
    zeroCopy.algo = zeroCopy.blocks != 0 ? RHW_ALGO_PULL : RHW_ALGO_AUTO;
  }
  if (zeroCopy.algo != RHW_ALGO_AUTO && areOffered(c)) {
    const CUfunction f = kernels.of(zeroCopy.algo, o.op, dtype);
    if (f != nullptr) return {f, zeroCopy};
  }
  if (c.stages && onCuda(comm)->stageBytes != 0) {
    const CUfunction f = kernels.of(zeroCopy.algo, o.op, dtype);
    if (f != nullptr) return {f, zeroCopy, true};
  }
  return {kernels.of(c.copied.algo, o.op, dtype), c.copied};
}

bool scales(const Operation& o) { return o.reduce.kind == host::Reduction::kPreMulSum; }

// In a world of one a collective is a copy, unless it scales.
bool isCopy(const Comm* comm, const Operation& o) { return comm->worldSize == 1 && !scales(o); }

// What ranks must agree on besides the signature, the algorithm and the grid.
uint64_t detailOf(const Comm* comm, const Selected& s, const CollectiveCall& c) {
  if (s.copies()) return placeOfCopies(comm, c);
  if (s.pulls()) return c.sendOffer * 0x9e3779b97f4a7c15u ^ c.recvOffer * 0xff51afd7ed558ccdu ^ 1;
  return s.choice.algo == RHW_ALGO_PIPE ? lanesOf(comm, s.choice) : 0;
}

// Blocks of a kernel over lanes: one for each lane of each transfer of this rank, but no more than the choice has.
uint32_t blocksOf(const Comm* comm, const Operation& o, const Choice& choice) {
  if (choice.algo != RHW_ALGO_PIPE || o.op == RHW_OP_ALL_GATHER || o.op == RHW_OP_ALL_TO_ALL) return choice.blocks;
  const bool toAll = o.root == comm->rank && o.op != RHW_OP_REDUCE;  // the root of a reduce adds all ranks' chunks of a lane in one block
  return std::min(uint32_t{choice.blocks}, lanesOf(comm, choice) * (toAll ? static_cast<uint32_t>(comm->worldSize - 1) : 1));
}

// The address at which a kernel that is zero-copy uses a buffer of this rank.
char* ownAddress(const Comm* comm, const void* buffer, uint64_t bytes) {
  const uint64_t offer = offerInRegions(comm, buffer, bytes);
  return offer == kNoOffset ? static_cast<char*>(const_cast<void*>(buffer)) : partOf(comm, offer, comm->localRank);
}

// Fills in the buffers of a zero-copy call. The windows of ranks that the comm does not have are not read.
void fillWindows(const Comm* comm, const CollectiveCall& c, gpu::WindowCall* w) {
  const uint32_t op = c.operation.op;
  const uint64_t part = bytesOf(c.operation), whole = part * static_cast<uint64_t>(comm->worldSize);
  w->call.send = ownAddress(comm, w->call.send, op == RHW_OP_REDUCE_SCATTER || op == RHW_OP_ALL_TO_ALL ? whole : part);
  w->call.recv = ownAddress(comm, w->call.recv, op == RHW_OP_ALL_GATHER || op == RHW_OP_ALL_TO_ALL ? whole : part);
  for (const LocalRank r : comm->localRanks()) {
    w->windows.send[client::number(r)] = c.sendOffer == kNoOffset ? nullptr : partOf(comm, c.sendOffer, r);
    w->windows.recv[client::number(r)] = c.recvOffer == kNoOffset ? nullptr : partOf(comm, c.recvOffer, r);
  }
}

gpu::Call fill(const Comm* comm, const CollectiveCall& c, const Selected& s, uint32_t stream) {
  const Operation& o = c.operation;
  const uint64_t bytes = bytesOf(o);
  const CallDetails details = callDetails(o);
  gpu::Call call = callOf(comm, {o.op, details.dtype, details.reduction, o.root == kNoWorldRank ? kNoRoot : details.root, o.count, c.captured, 0, 0}, bytes, stream);
  call.send = static_cast<const char*>(o.send);
  call.recv = static_cast<char*>(o.recv);
  call.count = hasType(o.op) ? o.count : bytes;
  call.detail = detailOf(comm, s, c);
  call.reduction = static_cast<uint32_t>(o.reduce.kind);
  if (o.root != kNoWorldRank) call.root = number(comm->localOf(o.root));
  memcpy(&call.scale, o.reduce.scalar, sizeof call.scale);
  return call;
}

bool submit(Comm* comm, const CollectiveCall& c, Queue on, uint32_t number, Selected* s, Failure* why) {
  CudaComm* of = onCuda(comm);
  const Operation& o = c.operation;
  if (isCopy(comm, o)) return o.op == RHW_OP_BARRIER || copy(*of, o.recv, o.send, bytesOf(o), on.stream, why);
  *s = select(comm, c);
  gpu::Call call = fill(comm, c, *s, number);
  if (s->copies()) return meetAndCopy(comm, c, s->function, {kOfBarrier.blocks, kOfBarrier.threads}, &call, on, why);
  if (s->stages) return runInStage(comm, c, s->function, {s->choice.blocks, s->choice.threads}, call, on, why);
  if (s->pulls()) {
    gpu::WindowCall w;
    w.call = call;
    fillWindows(comm, c, &w);
    return launch(of, s->function, {s->choice.blocks, s->choice.threads}, &w, on, why);
  }
  return launch(of, s->function, {blocksOf(comm, o, s->choice), s->choice.threads}, &call, on, why);
}

rh_result lacks(const Comm* comm, const char* operation, const char* what) {
  return fail(RH_ERR_UNSUPPORTED, "%s: rank %d: there is no kernel for it on a CUDA device%s; nothing was done", operation, number(comm->rank), what);
}

}  // namespace

rh_result admitCollective(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  if (isCopy(comm, o)) return RH_OK;
  if (comm->worldSize == 1) return lacks(comm, operationName(o.op), " in a group of one rank with a scale");
  if (select(comm, c).function != nullptr) return RH_OK;
  return lacks(comm, operationName(o.op), "");
}

// The flight record of an eager call says when the host has queued it, and by which algorithm it runs. Kernels write no records.
rh_result collective(Comm* comm, const CollectiveCall& c, void* stream) {
  const Operation& o = c.operation;
  Selected s;
  Failure why;
  const bool eager = c.captured == 0;
  CudaComm* of = onCuda(comm);
  const uint32_t streamNumber = eager ? queues(of, stream) : of->streams.of(stream);
  if (eager) {
    const uint64_t number = comm->state()->collectives + ++comm->queuedCollectives;
    comm->runsOn = {streamNumber, 0, 0};
    if (!beginOperation(comm, o.op, bytesOf(o), callDetails(o), number)) return whyBroken(comm);
  }
  const bool queued = submit(comm, c, {stream, !eager}, streamNumber, &s, &why);
  if (eager) {
    noteChoice(comm, s.choice);
    endOperation(comm, s.choice.algo);
    comm->runsOn = {};
  }
  if (__builtin_expect(queued, 1)) return RH_OK;
  return fail(why.result, "%s: rank %d: %s", operationName(o.op), number(comm->rank), why.text);
}

}  // namespace railhead::client::cuda
