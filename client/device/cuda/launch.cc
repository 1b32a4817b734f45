// The data path: a checked call becomes a kernel on the caller's stream. It takes no lock and allocates nothing.
#include <string.h>

#include "base/element_types.h"
#include "base/error.h"
#include "comm/choice.h"
#include "device/cuda/cuda_comm.h"

namespace railhead::client::cuda {

namespace {

// The kernel of a call.
struct Selected {
  CUfunction function = nullptr;  // nullptr = there is none
  Choice choice = {RHW_ALGO_AUTO, RHW_WHY_NONE};
  bool pulls = false;
};

// A kernel that reads the caller's buffers of other ranks needs both of them in windows. Whether they are at the same offsets on all ranks,
// the kernel finds out.
Selected select(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  const Kernels& kernels = *onCuda(comm)->kernels;
  const auto dtype = static_cast<uint32_t>(o.dtype);
  if (c.zeroCopy.algo != RHW_ALGO_AUTO && c.sendOffer != kNoOffset && c.recvOffer != kNoOffset) {
    const CUfunction f = kernels.of(c.zeroCopy.algo, o.op, dtype);
    if (f != nullptr) return {f, c.zeroCopy, true};
  }
  return {kernels.of(c.copied.algo, o.op, dtype), c.copied, false};
}

bool scales(const Operation& o) { return o.reduce.kind == host::Reduction::kPreMulSum; }

// In a world of one a collective is a copy, unless it scales.
bool isCopy(const Comm* comm, const Operation& o) { return comm->worldSize == 1 && !scales(o); }

uint64_t detailOf(const Selected& s, const CollectiveCall& c) {
  return s.pulls ? c.sendOffer * 0x9e3779b97f4a7c15u ^ c.recvOffer * 0xff51afd7ed558ccdu ^ 1 : 0;
}

void fill(const Comm* comm, const CollectiveCall& c, const Selected& s, uint32_t stream, gpu::Call* out) {
  const Operation& o = c.operation;
  const uint64_t bytes = bytesOf(o);
  out->team = onCuda(comm)->team;
  out->team.limitNs = static_cast<uint64_t>(limitNs(comm, bytes));
  out->send = static_cast<const char*>(o.send);
  out->recv = static_cast<char*>(o.recv);
  out->count = hasType(o.op) ? o.count : bytes;
  const CallDetails details = callDetails(o);
  out->call = {o.op, details.dtype, details.reduction, o.root == kNoWorldRank ? kNoRoot : details.root, o.count, c.captured, 0, 0};
  out->detail = detailOf(s, c);
  out->sendOffset = s.pulls ? c.sendOffer : 0;
  out->recvOffset = s.pulls ? c.recvOffer : 0;
  out->reduction = static_cast<uint32_t>(o.reduce.kind);
  out->root = o.root == kNoWorldRank ? -1 : number(comm->localOf(o.root));
  memcpy(&out->scale, o.reduce.scalar, sizeof out->scale);
  out->stream = stream;
  out->reserved = 0;
}

bool launch(const CudaComm& of, const Selected& s, gpu::Call* call, void* stream, Failure* why) {
  CUlaunchConfig config = {};
  config.gridDimX = s.choice.blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = s.choice.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = static_cast<CUstream>(stream);
  void* parameters[] = {call};
  const Entered entered(of.context);
  return of.context.driver->cuLaunchKernelEx(why, &config, s.function, parameters, nullptr);
}

bool copy(const CudaComm& of, const Operation& o, void* stream, Failure* why) {
  if (o.op == RHW_OP_BARRIER || o.count == 0 || o.send == o.recv) return true;
  const Entered entered(of.context);
  return of.context.driver->cuMemcpyAsync(why, reinterpret_cast<CUdeviceptr>(o.recv), reinterpret_cast<CUdeviceptr>(o.send), bytesOf(o), static_cast<CUstream>(stream));
}

bool submit(Comm* comm, const CollectiveCall& c, void* stream, Selected* s, Failure* why) {
  CudaComm* of = onCuda(comm);
  of->mayRun = true;
  if (isCopy(comm, c.operation)) return copy(*of, c.operation, stream, why);
  *s = select(comm, c);
  gpu::Call call;
  fill(comm, c, *s, of->streams.of(stream), &call);
  return launch(*of, *s, &call, stream, why);
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

rh_result admitTransfers(const Comm* comm, const TransfersCall& c) { return lacks(comm, operationName(c.op), ""); }

// The flight record of an eager call says when the host has queued it, and by which algorithm it runs. Kernels write no records.
rh_result collective(Comm* comm, const CollectiveCall& c, void* stream) {
  const Operation& o = c.operation;
  Selected s;
  Failure why;
  const bool eager = c.captured == 0;
  if (eager) {
    const uint64_t number = comm->state()->collectives + ++comm->queuedCollectives;
    comm->runsOn = {onCuda(comm)->streams.of(stream), 0, 0};
    if (!beginOperation(comm, o.op, bytesOf(o), callDetails(o), number)) return whyBroken(comm);
  }
  const bool queued = submit(comm, c, stream, &s, &why);
  if (eager) {
    noteChoice(comm, s.choice);
    endOperation(comm, s.choice.algo);
    comm->runsOn = {};
  }
  if (__builtin_expect(queued, 1)) return RH_OK;
  return fail(why.result, "%s: rank %d: %s", operationName(o.op), number(comm->rank), why.text);
}

rh_result transfers(Comm* comm, const TransfersCall& c, void*) { return admitTransfers(comm, c); }

}  // namespace railhead::client::cuda
