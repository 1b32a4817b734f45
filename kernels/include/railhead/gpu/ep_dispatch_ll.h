// The kernel of a dispatch: it sends, receives, or both.
#ifndef RAILHEAD_KERNELS_GPU_EP_DISPATCH_LL_H_
#define RAILHEAD_KERNELS_GPU_EP_DISPATCH_LL_H_

#include "railhead/gpu/ep_control.h"
#include "railhead/gpu/ep_receive.h"

namespace railhead::gpu {

template <class C>
class EpDispatchKernel {
 public:
  RH_FN EpDispatchKernel(C& c, const EpDispatchCall& call) : c_(c), call_(call), shared_(c.epShared()) {}

  RH_FN void run() {
    epRun(c_, call_, [&] { return data(); }, [&](uint32_t thread, uint32_t threads) { finish(thread, threads); }, [&] { last(); });
  }

 private:
  RH_FN bool does(uint32_t step) const { return (call_.steps & step) != 0; }
  RH_FN bool isFirst() const { return c_.threadInBlock() == 0; }
  RH_FN bool reports() const { return c_.block() == 0 && isFirst(); }

  RH_FN bool data() {
    if (isFirst()) decide();
    c_.dataAll(true);
    EpReport report = {};
    const EpError error = static_cast<EpError>(shared_.error);
    if (error != EpError::kNone) return refuse(error, &report);
    if (does(kEpSends)) {
      EpRoutes<C> routes(c_, call_);
      routes.clear();
      c_.dataAll(true);
      routes.countProblems();
      c_.dataAll(true);
      if (!call_.dropsInvalid && routes.areThereProblems()) {
        if (reports()) report.problems = routes.problems();
        return refuse(EpError::kInvalidInput, &report);
      }
      EpSender<C> sender(c_, call_, routes);
      if (!sender.send()) return false;
      if (does(kEpReceives)) return receive(&report);
      if (reports()) report.problems = routes.problems();
      report.number = shared_.number;
      return end(report, EpError::kNone);
    }
    return receive(&report);
  }

  RH_FN bool receive(EpReport* report) {
    EpReceiver<C> receiver(c_, call_);
    if (!does(kEpSends)) receiver.loadOwnCounts();
    if (!receiver.awaitCounts()) return false;
    if (does(kEpLooks)) {
      if (c_.block() == 0) receiver.describeCounts();
      return end(*report, EpError::kNone);
    }
    const EpError error = receiver.place(report);
    if (error != EpError::kNone) return end(*report, error);
    if (!receiver.takeRows()) return false;
    if (c_.block() == 0) receiver.describe(*report);
    return end(*report, EpError::kNone);
  }

  RH_FN uint32_t nextNumber() const { return (c_.loadState(&call_.team.state()->dispatches) + 1) & C::kMeetingMask; }
  RH_FN void decide() {
    const EpFlights<C> flights(c_, call_);
    const EpState* state = call_.team.state();
    EpError error;
    if (does(kEpSends)) {
      error = does(kEpReceives) && flights.isAnyToReceive() ? EpError::kOtherNotReceived : flights.take(&shared_.flight);
      shared_.number = nextNumber();
    } else {
      error = flights.mayReceive(&shared_.flight);
      if (error == EpError::kNone) shared_.number = flights.numberOf(shared_.flight);
    }
    shared_.error = static_cast<uint32_t>(error);
    shared_.masked = c_.loadState(&state->masked);
  }

  // The report and what control needs. The call has changed nothing.
  RH_FN bool refuse(EpError error, EpReport* report) {
    if (!reports()) return true;
    report->error = error;
    call_.cell->dispatched = *report;
    c_.storeState(&call_.state->error, static_cast<uint64_t>(error));
    return true;
  }
  // error: of the receive phase.
  RH_FN bool end(const EpReport& report, EpError error) {
    if (!reports()) return true;
    EpReport* to = &call_.cell->dispatched;
    *to = report;
    to->error = error;
    const EpFlightState& f = call_.state->flights[shared_.flight];
    if (does(kEpReceives) && error == EpError::kNone) {
      to->number = shared_.number;
      to->problems = f.problems;
      to->lostRanks = c_.loadState(&f.masked) | shared_.masked;
      to->lostCopies = c_.loadState(&f.maskedCopies);
      const uint32_t* copies = call_.flights[shared_.flight].copies;
      RH_ROLLED
      for (uint64_t left = to->lostRanks; left != 0; left &= left - 1) to->lostCopies += c_.loadState(copies + lowestBit(left));
    }
    c_.storeState(&call_.state->error, uint64_t{0});
    c_.storeState(&call_.state->receiveError, static_cast<uint64_t>(error));
    return true;
  }

  // ---- Control, after all blocks have ended ----

  RH_FN bool hasReceived() const {
    return does(kEpReceives) && c_.loadState(&call_.state->error) == 0 && c_.loadState(&call_.state->receiveError) == 0;
  }
  RH_FN uint32_t flight() const {
    const EpFlights<C> flights(c_, call_);
    uint32_t f = 0;
    if (does(kEpSends)) {
      flights.take(&f);
    } else {
      flights.mayReceive(&f);
    }
    return f;
  }

  RH_FN uint32_t number() const {
    return does(kEpSends) ? nextNumber() : static_cast<uint32_t>(c_.loadState(&call_.state->flights[flight()].number));
  }

  // Takes the counts out, and lets the senders fill their slots again.
  RH_FN void finish(uint32_t thread, uint32_t threads) {
    if (!hasReceived()) return;
    const EpTeam& team = call_.team;
    const EpSlots slots = {team, number()};
    const uint64_t masked = c_.loadState(&team.state()->masked);
    const uint32_t each = 1u + team.localExperts[team.rank];
    RH_ROLLED
    for (uint32_t i = thread; i < each * static_cast<uint32_t>(team.worldSize); i += threads) {
      const int s = static_cast<int>(i / each);
      if (s == team.rank || (masked >> s & 1) != 0 || mutated(Mutant::kGpuEpCountsNotCleared)) continue;
      c_.storeFlag(slots.counts(team.rank, s) + i % each, 0);
    }
    c_.controlAll(true);
    if (!mutated(Mutant::kGpuEpHeadWithoutFence)) c_.fence();
    RH_ROLLED
    for (int s = static_cast<int>(thread); s < team.worldSize; s += static_cast<int>(threads)) {
      if (s != team.rank && (masked >> s & 1) == 0) c_.storeFlag(slots.head(s, team.rank), slots.number);
    }
  }

  RH_FN void last() {
    if (c_.loadState(&call_.state->error) != 0) return;
    const uint32_t at = flight();
    EpFlightState& f = call_.state->flights[at];
    if (does(kEpSends)) {
      const uint32_t number = nextNumber();
      c_.storeState(&f.number, uint64_t{number});
      c_.storeState(&call_.team.state()->dispatches, number);
      c_.storeState(reinterpret_cast<uint32_t*>(&call_.cell->flight), at);
      c_.storeState(&f.phase, static_cast<uint64_t>(EpPhase::kSent));
    }
    if (!hasReceived()) return;
    EpReport* report = &call_.cell->dispatched;
    report->overCapacity = c_.loadOwn(&call_.state->dropped);
    c_.storeState(&f.phase, static_cast<uint64_t>(EpPhase::kReceived));
    c_.storeState(&f.perToken, uint64_t{call_.receive.layout == EpRowLayout::kTokens});
    c_.storeState(&f.hasRows, uint64_t{report->tokens > 0 && report->rows > 0});
    c_.storeState(&f.lostCopies, report->lostCopies);
  }

  C& c_;
  const EpDispatchCall& call_;
  EpShared& shared_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_DISPATCH_LL_H_
