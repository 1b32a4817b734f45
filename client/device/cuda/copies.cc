#include "device/cuda/copies.h"

#include <algorithm>

#include "comm/comm.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/launch.h"

namespace railhead::client::cuda {

bool openCopyStreams(const Context& context, CopyStreams* out, Failure* why) {
  const Current current(context, why);
  if (!current || !context.driver->cuEventCreate(why, &out->begun, CU_EVENT_DISABLE_TIMING)) return false;
  for (int i = 0; i < CopyStreams::kMost; i++) {
    if (!context.driver->cuStreamCreate(why, &out->streams[i], CU_STREAM_NON_BLOCKING)) return false;
    if (!context.driver->cuEventCreate(why, &out->ended[i], CU_EVENT_DISABLE_TIMING)) return false;
  }
  return true;
}

void closeCopyStreams(const Context& context, CopyStreams* streams) {
  const Current current(context);
  const Driver& driver = *context.driver;
  for (int i = 0; i < CopyStreams::kMost; i++) {
    if (streams->ended[i] != nullptr) driver.cuEventDestroy.call(streams->ended[i]);
    if (streams->streams[i] != nullptr) driver.cuStreamDestroy.call(streams->streams[i]);
  }
  if (streams->begun != nullptr) driver.cuEventDestroy.call(streams->begun);
  *streams = CopyStreams();
}

namespace {

bool isInPlace(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  return o.op == RHW_OP_ALL_GATHER && o.send == static_cast<const char*>(o.recv) + static_cast<uint64_t>(number(comm->rank)) * bytesOf(o);
}

// What the other ranks read, as an offer. Of a gather in place each rank's part of recv lies at another place.
uint64_t originOf(const Comm* comm, const CollectiveCall& c) {
  return c.operation.op == RHW_OP_BROADCAST || isInPlace(comm, c) ? c.recvOffer : c.sendOffer;
}

}  // namespace

// The plans lie in memory that any rank can write, so the operation is checked too.
bool canCopy(const Comm* comm, const CollectiveCall& c) {
  const bool hasCopies = (rhw_algorithms[RHW_ALGO_COPY].cuda >> c.operation.op & 1) != 0;
  return hasCopies && originOf(comm, c) != kNoOffset;
}

uint64_t placeOfCopies(const Comm* comm, const CollectiveCall& c) {
  return originOf(comm, c) * 0x9e3779b97f4a7c15u ^ (isInPlace(comm, c) ? 2 : 1);
}

namespace {

// Copies of a call, from 0. Number k of an all-gather or all-to-all is from the k-th rank after this one, so that the ranks begin with different
// ones; the last is this rank's own part. Of a broadcast there is one from the root.
int copiesOf(const Comm* comm, const CollectiveCall& c) {
  return c.operation.op != RHW_OP_BROADCAST ? comm->worldSize : c.operation.root == comm->rank ? 0 : 1;
}

bool copyPart(const Comm* comm, const CollectiveCall& c, int k, void* stream, Failure* why) {
  const Operation& o = c.operation;
  const uint64_t part = bytesOf(o), self = static_cast<uint64_t>(number(comm->rank));
  const bool broadcasts = o.op == RHW_OP_BROADCAST;
  const LocalRank from = comm->localOf(broadcasts ? o.root : WorldRank{(number(comm->rank) + 1 + k) % comm->worldSize});
  const uint64_t place = broadcasts ? 0 : static_cast<uint64_t>(number(from)) * part;
  char* to = static_cast<char*>(o.recv) + place;
  const uint64_t toSelf = o.op == RHW_OP_ALL_TO_ALL ? self * part : 0;  // where a sender's buffer has what is for this rank
  // This rank's own registered memory is mapped twice, so that only the caller's address shows that there is nothing to copy.
  if (from == comm->localRank) return copy(*onCuda(comm), to, static_cast<const char*>(o.send) + toSelf, part, stream, why);
  return copy(*onCuda(comm), to, partOf(comm, originOf(comm, c), from) + (isInPlace(comm, c) ? place : toSelf), part, stream, why);
}

// Copies first, first + step, ...
bool copyParts(const Comm* comm, const CollectiveCall& c, int first, int step, void* stream, Failure* why) {
  for (int k = first; k < copiesOf(comm, c); k += step) {
    if (!copyPart(comm, c, k, stream, why)) return false;
  }
  return true;
}

// Whether the first streams of the comm can take work of a call on the caller's: they cannot while a capture of another stream holds them.
bool areFree(const Comm* comm, int streams, const void* callers) {
  uint64_t ours = 0, theirs = 0;
  if (kStreams.captureOf(comm, callers, &ours) != RH_OK) return false;
  for (int i = 0; i < streams; i++) {
    if (kStreams.captureOf(comm, onCuda(comm)->copyStreams.streams[i], &theirs) != RH_OK || (theirs != 0 && theirs != ours)) return false;
  }
  return true;
}

// The caller's stream waits for what has been queued on one of the comm's, also after a failure: a capture must not end with streams apart.
bool join(const Driver& driver, const CopyStreams& s, int i, CUstream callers, Failure* why) {
  return driver.cuEventRecord(why, s.ended[i], s.streams[i]) && driver.cuStreamWaitEvent(why, callers, s.ended[i], 0);
}

// Copies on the caller's stream and beside it.
bool copyAll(const Comm* comm, const CollectiveCall& c, void* stream, Failure* why) {
  const CudaComm& of = *onCuda(comm);
  const Driver& driver = *of.context.driver;
  const CopyStreams& s = of.copyStreams;
  const auto callers = static_cast<CUstream>(stream);
  const int beside = std::min(copiesOf(comm, c) - 1, CopyStreams::kMost);
  if (beside < 1 || !areFree(comm, beside, stream)) return copyParts(comm, c, 0, 1, stream, why);
  const Entered entered(of.context);
  if (!driver.cuEventRecord(why, s.begun, callers)) return false;
  int begun = 0;
  bool good = true;
  for (; begun < beside && good; begun++) {
    if (!driver.cuStreamWaitEvent(why, s.streams[begun], s.begun, 0)) break;
    good = copyParts(comm, c, begun + 1, beside + 1, s.streams[begun], why);
  }
  good = good && begun == beside && copyParts(comm, c, 0, beside + 1, stream, why);
  for (int i = 0; i < begun; i++) good = join(driver, s, i, callers, why) && good;
  return good;
}

}  // namespace

// The first meeting says that every rank's windows are complete and that nobody reads recv any more; the second that nobody reads send any more.
bool meetAndCopy(const Comm* comm, const CollectiveCall& c, CUfunction meeting, Grid grid, gpu::Call* call, Queue on, Failure* why) {
  CudaComm* of = onCuda(comm);
  const Operation& o = c.operation;
  // The other ranks read the root's recv, because they do not know where its send lies.
  if (o.op == RHW_OP_BROADCAST && o.root == comm->rank && !copy(*of, o.recv, o.send, bytesOf(o), on.stream, why)) return false;
  if (!launch(of, meeting, grid, call, on, why) || !copyAll(comm, c, on.stream, why)) return false;
  call->detail = ~call->detail;  // a first meeting is none with a second one
  return launch(of, meeting, grid, call, on, why);
}

}  // namespace railhead::client::cuda
