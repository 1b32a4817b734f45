#include "host/ep.h"

#include <string.h>

#include "host/mem.h"
#include "railhead/ep/ep_combine.h"

namespace railhead::host {

namespace {

struct AnyIsa {};  // no vector code here

struct EpMem : Mem<AnyIsa> {
  explicit EpMem(const EpRowKernels& kernels) : kernels_(kernels) {}
  void fanOutFromSlot(const char* row, void* const* to, uint32_t n, uint32_t bytes, bool streams) {
    kernels_.fanOut(row, to, static_cast<int>(n), bytes, streams);
  }
  void fanOutLocal(const char* row, void* const* to, uint32_t n, uint32_t bytes, bool streams) { fanOutFromSlot(row, to, n, bytes, streams); }

 private:
  const EpRowKernels& kernels_;
};

// Element types, behind function pointers: one call a row.
class SumRows {
 public:
  explicit SumRows(const EpSums& sums)
      : s_(sums), yStride_(stride(sums.y)), outStride_(stride(sums.out)) {}

  void partial(const EpRowRef* list, uint32_t n, char* out) const {
    if (n == 0) {
      memset(out, 0, uint64_t{s_.format->hidden} * bytesOf(s_.format->combine));
      return;
    }
    const void* rows[kEpMaxTopk];
    float weights[kEpMaxTopk];
    for (uint32_t i = 0; i < n; i++) {
      rows[i] = s_.yRows + list[i].row * yStride_;
      weights[i] = list[i].weight;
    }
    s_.kernels->partial(*s_.format, s_.y, rows, s_.weighted ? nullptr : weights, static_cast<int>(n), out);
  }
  void finish(uint32_t token, const char* const* partials, int n, bool scaled, float factor) const {
    const char* add = s_.addRows == nullptr ? nullptr : s_.addRows + token * outStride_;
    const void* rows[kMaxWorldSize] = {};
    for (int i = 0; i < n; i++) rows[i] = partials[i];
    s_.kernels->finish(*s_.format, rows, n, scaled, factor, add, s_.out, s_.outRows + token * outStride_);
  }

 private:
  uint64_t stride(Type t) const { return uint64_t{s_.format->hidden} * bytesOf(t); }

  const EpSums& s_;
  const uint64_t yStride_, outStride_;
};

// done: the flags keep the reason of a piece of a wait that was in vain, also where the next piece was not.
Outcome outcomeOf(const EpLinks<EpMem>& links, bool done) {
  if (done) return {Stop::kNone, 0, {}};
  return {links.stop(), links.missing(), {}};
}

template <class Step>
Outcome dispatch(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, Step step) {
  EpMem mem(kernels().rows);
  EpLinks<EpMem> links(mem, flags, team);
  EpDispatch<EpMem> d(mem, team, links, *flight);
  return outcomeOf(links, step(d));
}

template <class Step>
Outcome combine(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, const EpSums& sums, Step step) {
  EpMem mem(kernels().rows);
  EpLinks<EpMem> links(mem, flags, team);
  SumRows rows(sums);
  EpCombine<EpMem, SumRows> c(mem, team, links, *flight, rows, sums.scratch, sums.renormalize);
  return outcomeOf(links, step(c));
}

}  // namespace

Outcome epDispatchSend(const FlagTeam& flags, const EpTeam& team, EpFlight* flight) {
  return dispatch(flags, team, flight, [](auto& d) { return d.send(); });
}
Outcome epAwaitCounts(const FlagTeam& flags, const EpTeam& team, EpFlight* flight) {
  return dispatch(flags, team, flight, [](auto& d) { return d.awaitCounts(); });
}
Outcome epDispatchReceive(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, const EpOutput& out) {
  return dispatch(flags, team, flight, [&](auto& d) { return d.receive(out); });
}
Outcome epCombineSend(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, const EpSums& sums) {
  return combine(flags, team, flight, sums, [](auto& c) {
    c.send();
    return true;
  });
}
Outcome epCombineReceive(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, const EpSums& sums) {
  return combine(flags, team, flight, sums, [](auto& c) { return c.receive(); });
}

void epFinishWithout(const EpSums& sums, uint32_t from, uint32_t to) {
  const SumRows rows(sums);
  for (uint32_t t = from; t < to; t++) rows.finish(t, nullptr, 0, false, 1);
}

uint64_t epRowsOf(const EpTeam& team, const EpFlight& flight, uint32_t local) {
  uint64_t n = 0;
  for (int s = 0; s < team.worldSize; s++) n += flight.counts[static_cast<uint64_t>(s) * team.maxLocal + local];
  return n;
}
uint64_t epTokensOf(const EpTeam& team, const EpFlight& flight) {
  uint64_t n = 0;
  for (int s = 0; s < team.worldSize; s++) n += flight.received[s];
  return n;
}

}  // namespace railhead::host
