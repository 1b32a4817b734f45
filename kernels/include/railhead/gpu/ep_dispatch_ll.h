// The kernel of a dispatch: it sends, receives, or both.
#ifndef RAILHEAD_KERNELS_GPU_EP_DISPATCH_LL_H_
#define RAILHEAD_KERNELS_GPU_EP_DISPATCH_LL_H_

#include "railhead/gpu/ep_control.h"
#include "railhead/gpu/ep_dispatch_ht.h"
#include "railhead/gpu/ep_receive.h"
#include "railhead/gpu/ep_repair.h"

namespace railhead::gpu {

template <class C, bool kHt = false>
class EpDispatchKernel {
 public:
  RH_FN EpDispatchKernel(C& c, const EpDispatchCall& call) : c_(c), call_(call), shared_(c.epShared()), sender_(c, call) {}

  RH_FN void run() { epRun(c_, call_, *this); }

  // Of epRun(): data threads.
  RH_FN void prepare() {
    // The last thread has nothing else to load most often.
    if (c_.threadInBlock() + 1 == c_.dataThreadsInBlock()) decide();
    if (does(kEpSends)) sender_.prepare();
  }
  RH_FN bool data() {
    const EpError error = static_cast<EpError>(shared_.error);
    if (error != EpError::kNone) return refuse(error);
    if (does(kEpSends)) {
      if (!sender_.begin()) return false;
      if (!call_.dropsInvalid && sender_.routes().areThereProblems()) return refuse(EpError::kInvalidInput);
      sender_.send();
      if (!does(kEpReceives)) return end({}, EpError::kNone);
    }
    return receive();  // once in the code, which is inlined
  }

  // Of epRun(): control threads.
  RH_FN void look() {
    const EpFlights<C> flights(c_, call_);
    masked_ = c_.loadState(&call_.team.state()->masked);
    number_ = nextNumber();
    if (mutated(Mutant::kGpuEpHeadBeforeDone) && does(kEpReceives)) epStoreHeads(c_, call_.team, number_, masked_);
    if (does(kEpSends)) {
      flights.take(&flight_);
    } else if (flights.mayReceive(&flight_) == EpError::kNone) {
      number_ = flights.numberOf(flight_);
    }
  }
  RH_FN bool settles(uint64_t) const { return kHt || epDropsDead<C>(call_.team); }
  RH_FN void last(uint32_t outcome, uint64_t gone) {
    if (epErrorOf(outcome) != EpError::kNone) return;
    EpFlightState& f = call_.state->flights[flight_];
    const bool received = hasReceived(outcome);
    if (does(kEpSends)) {
      c_.storeOwn(&f.number, uint64_t{number_});
      c_.storeOwn(&call_.team.state()->dispatches, number_);
      c_.storeOwn(reinterpret_cast<uint32_t*>(call_.flight), flight_);
      // Not in the history of calls: a rank may send with a call of its own, and another one not.
      if (call_.counts && masked_ == 0) c_.storeState(&c_.state()->device.collectives, c_.started().collectives + 1);
    }
    if (does(kEpSends) || received) c_.storeOwn(&f.phase, static_cast<uint64_t>(received ? EpPhase::kReceived : EpPhase::kSent));
    if (!received) return;
    c_.storeState(&call_.state->received, number_);
    c_.storeState(&call_.state->owesHeads, uint32_t{1});
    if (kHt) advanceRings();
    const uint32_t dropped = epDropsDead<C>(call_.team) ? c_.loadOwn(&call_.state->dropped) : 0;
    if (dropped != 0) call_.cell->dispatched.overCapacity = dropped;
    EpCounting<C>(c_, call_.team).received(dropped);
    if (gone != 0) EpRepair<C>::report(c_, call_, c_.way(), flight_, masked_ | gone);
  }
  // By the last block that ends, if ranks may be given up.
  RH_FN void repair() {
    if (does(kEpReceives) && shared_.hasTaken != 0) EpRepair<C>::clearMissing(c_, call_, c_.way());
  }

 private:
  RH_FN bool does(uint32_t step) const { return (call_.steps & step) != 0; }
  RH_FN bool isFirst() const { return c_.threadInBlock() == 0; }
  // The last block has the fewest tokens.
  RH_FN bool isLast() const { return c_.block() + 1 == c_.dataBlocks(); }
  RH_FN bool reports() const { return isLast() && isFirst(); }
  RH_FN bool hasReceived(uint32_t outcome) const {
    return does(kEpReceives) && epErrorOf(outcome) == EpError::kNone && epReceiveErrorOf(outcome) == EpError::kNone;
  }
  RH_FN uint32_t nextNumber() const { return (c_.loadOwn(&call_.team.state()->dispatches) + 1) & C::kMeetingMask; }

  RH_FN void advanceRings() {
    EpRings<C> rings(c_, call_);
    const EpFlightArrays& arrays = call_.flights[flight_];
    RH_ROLLED
    for (int r = 0; r < call_.team.worldSize; r++) {
      rings.advance(&call_.state->sent[r], c_.loadState(arrays.copies + r));
      rings.advance(&call_.state->taken[r], c_.loadState(arrays.received + r));
    }
  }
  RH_FN void decide() {
    const EpFlights<C> flights(c_, call_);
    const uint32_t next = nextNumber();
    const uint64_t masked = c_.loadState(&call_.team.state()->masked);
    EpError error;
    shared_.number = next;
    if (does(kEpSends)) {
      error = does(kEpReceives) && flights.isAnyToReceive() ? EpError::kOtherNotReceived : flights.take(&shared_.flight);
    } else {
      error = flights.mayReceive(&shared_.flight);
      if (error == EpError::kNone) shared_.number = flights.numberOf(shared_.flight);
    }
    shared_.error = static_cast<uint32_t>(error);
    shared_.masked = masked;
    shared_.gone[0] = shared_.gone[1] = shared_.uncounted[0] = shared_.uncounted[1] = shared_.hasTaken = 0;
  }

  // A barrier is before.
  RH_FN bool receive() {
    EpReceiver<C, kHt> receiver(c_, call_, sender_);
    EpPlaces<C>& places = receiver.places();
    if (!does(kEpSends)) {
      places.loadOwnCounts();
      c_.dataAll(true);
    }
    if (!places.awaitCounts()) return false;
    EpRoom room = {};
    if (does(kEpLooks)) {
      if (isLast()) places.describeCounts();
      return end(room, EpError::kNone);
    }
    const EpError error = places.place(&room);
    if (error == EpError::kNone && c_.block() == sender_.keepingBlock()) places.describe(room);
    if (isFirst()) shared_.hasTaken = error == EpError::kNone;
    end(room, error);  // early: its stores need not be waited for. Nobody reads them until the kernel has ended
    if (error != EpError::kNone) return true;
    if constexpr (kHt) {
      return EpMover<C>(c_, call_, receiver).run();
    } else {
      return receiver.takeRows();
    }
  }

  // The call has changed nothing.
  RH_FN bool refuse(EpError error) {
    if (!reports()) return true;
    EpReport* to = &call_.cell->dispatched;
    *to = {};
    to->error = error;
    if (error == EpError::kInvalidInput) sender_.routes().storeProblems(&to->problems);
    shared_.outcome = epOutcome(error, EpError::kNone);
    return true;
  }
  // error: of the receive phase.
  RH_FN bool end(const EpRoom& room, EpError error) {
    if (!reports()) return true;
    EpReport* to = &call_.cell->dispatched;
    *to = {};
    to->error = error;
    to->wantedBy = room.wantedBy;
    to->wanted = room.wanted;
    to->capacity = room.capacity;
    to->rows = room.rows;
    to->tokens = room.tokens;
    shared_.outcome = epOutcome(EpError::kNone, error);
    if (error != EpError::kNone || does(kEpLooks)) return true;
    to->number = shared_.number;
    to->overCapacity = room.overCapacity;
    EpCounting<C>(c_, call_.team).overCapacity(room.overCapacity);
    EpFlightState& f = call_.state->flights[shared_.flight];
    if (does(kEpSends)) {
      sender_.routes().storeProblems(&to->problems);
    } else {
      to->problems = f.problems;
    }
    if (!does(kEpReceives)) return true;
    c_.storeState(&f.perToken, uint64_t{call_.receive.layout == EpRowLayout::kTokens});
    c_.storeState(&f.hasRows, uint64_t{room.tokens > 0 && room.rows > 0});
    reportLosses(to, f);
    return true;
  }
  RH_FN void reportLosses(EpReport* to, const EpFlightState& f) {
    const uint64_t lostRanks = shared_.masked | (does(kEpSends) ? 0 : c_.loadState(&f.masked));
    to->lostRanks = lostRanks;
    if (lostRanks == 0) return;
    const uint32_t* copies = call_.flights[shared_.flight].copies;
    uint64_t lost = does(kEpSends) ? 0 : c_.loadState(&f.maskedCopies);
    RH_ROLLED
    for (uint64_t left = lostRanks; left != 0; left &= left - 1) {
      const auto r = static_cast<uint32_t>(lowestBit(left));
      lost += does(kEpSends) ? shared_.totals[call_.team.physical + r] : c_.loadState(copies + r);  // of this kernel another block stores them
    }
    to->lostCopies = lost;
  }

  C& c_;
  const EpDispatchCall& call_;
  EpShared& shared_;
  EpSender<C, kHt> sender_;
  // Of control: the dispatch's.
  uint32_t flight_ = 0, number_ = 0;
  uint64_t masked_ = 0;
};

template <class C>
using EpDispatchHtKernel = EpDispatchKernel<C, true>;

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_DISPATCH_LL_H_
