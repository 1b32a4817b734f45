// Reports in the order of a stream: a function of the host behind the call's kernels, which the driver calls on a thread of its own. The kernels have
// written numbers to the cell; the host makes a report of them, with its text.
#include "device/cuda/cuda_ep.h"

namespace railhead::client::cuda {

struct EpReporting : Malloced {
  Ep* ep;
  EpRequest::Kind kind;
  const EpCell* cell;
  EpReportTo to;
  bool captured;  // it runs with each launch of the graph, which keeps it
};

namespace {

void write(const EpReporting& r) {
  const Comm* comm = r.ep->comm;
  EpReport report = r.kind >= EpRequest::kCombine ? r.cell->combined : r.cell->dispatched;
  const CudaComm* of = onCuda(comm);
  if (__atomic_load_n(&of->pinned->stop, __ATOMIC_ACQUIRE) != 0) {  // what the kernel has written means nothing
    report = {};
    report.error = EpError::kStopped;
    if (!__atomic_load_n(&of->left, __ATOMIC_ACQUIRE)) awaitCause(comm);
  }
  writeReport(r.ep, r.kind, report, r.to);
}

void drop(EpReporting* r) {
  Comm* comm = r->ep->comm;
  releaseEp(r->ep);
  if (!r->captured) releaseComm(comm);  // a captured one has the graph's reference, which client/ep holds
  delete r;
}

void run(void* p) {
  const DriversThread here;
  auto* r = static_cast<EpReporting*>(p);
  write(*r);
  if (!r->captured) drop(r);
}

}  // namespace

bool prepareReport(Comm* comm, const EpRequest& call, Queue on, EpReporting** out, Failure* why) {
  auto* r = new EpReporting();
  if (r == nullptr) return because(why, RH_ERR_OUT_OF_MEMORY, "no memory to note where the report goes");
  r->ep = call.ep;
  r->kind = call.kind;
  r->cell = call.cell;
  r->to = call.report;
  r->captured = on.captured;
  retainEp(call.ep);
  if (!on.captured) retainComm(comm);
  *out = r;
  if (!on.captured || kStreams.keep(comm, on.stream, [](void* p) { drop(static_cast<EpReporting*>(p)); }, r)) return true;
  drop(r);
  return because(why, RH_ERR_OUT_OF_MEMORY, "no memory to note what the captured report keeps");
}

bool queueReport(const CudaComm& of, EpReporting* r, Queue on, Failure* why) {
  const Entered entered(of.context);
  if (of.context.driver->cuLaunchHostFunc(why, static_cast<CUstream>(on.stream), run, r)) return true;
  dropReport(r, on);
  return prefix(why, "the call was queued, but not its report: ");
}

void dropReport(EpReporting* r, Queue on) {
  if (!on.captured) drop(r);  // else with the capture
}

}  // namespace railhead::client::cuda
