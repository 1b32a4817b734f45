// The flight record: what a rank's last operations were. It is a ring of records in shared memory, which the daemon reads at
// any time, also after the rank has died. One writer, the rank; readers disturb nobody and wait for nobody.
//
// A record's number guards it, as a sequence lock that needs no counter of its own: numbers only grow, so a record that has
// been written over never gets its number back. The end of an operation is published by `done`, without another lock.
#ifndef RAILHEAD_KERNELS_FLIGHT_RECORD_H_
#define RAILHEAD_KERNELS_FLIGHT_RECORD_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"

namespace railhead {

// Two cache lines. The second is written only by an operation that has waited for somebody, and by a GPU.
struct alignas(64) FlightRecord {
  // Of the operation, from 1; 0 = nothing is here, or it is being written. Writer: 0 (relaxed) before the words below are
  // written over, with a release fence behind it; the number (release) behind them. Readers: acquire, and a second look
  // (relaxed) behind an acquire fence.
  uint64_t number;
  // From bit 0: operation 8 bits, element type 8, reduction 8, algorithm 8, outcome (Stop) 8, flags 8 (kHasArrivals), 16: index of the
  // operation in its captured graph, from 1, 0 = called eagerly. Algorithm, outcome and flags are written at the end.
  uint64_t call;
  // From bit 0: root or peer 32 bits (kNobody), stream 32 (0 = none).
  uint64_t place;
  uint64_t bytes;
  uint64_t collective;  // number of the collective, the same on every rank; 0 = not all ranks take part
  uint64_t enqueued;    // times are ns of the monotonic clock
  // When the operation ended, or gave up; 0 = it has not. Writer: release, behind what is written at the end. Readers: acquire.
  uint64_t done;
  // From bit 0: captured graph 32 bits, its replay 32; 0 = called eagerly.
  uint64_t replay;

  // Written at the end, and good where kHasArrivals is set in the call of a record that is done.
  uint64_t firstArrival, lastArrival;  // of the ranks that this one had to wait for
  uint64_t lastRank;                   // whose arrival lastArrival is
  uint64_t deviceBegin, deviceEnd;     // when a GPU began and ended it; a CPU leaves them 0
  uint64_t reserved[3];
};
static_assert(sizeof(FlightRecord) == 128, "two cache lines");

constexpr uint32_t kNobody = ~uint32_t{0};            // in place of a root or peer
constexpr uint64_t kHasArrivals = uint64_t{1} << 40;  // of FlightRecord::call

// What a record says of a call beside its operation: type and reduction, 8 bits each, 0xff = it has none; root or peer, kNobody; index in
// the captured graph, 16 bits.
struct CallDetails {
  uint32_t dtype, reduction, root, captured;
};
constexpr CallDetails kNoCallDetails = {0xff, 0xff, kNobody, 0};
constexpr int kRecordCapturedShift = 48;  // of FlightRecord::call

// What is known at the begin.
struct BegunRecord {
  uint64_t number, call, place, bytes, collective, enqueued, replay;
};

// What an operation has waited for: written in its waits, read at its end, by its rank alone.
struct Arrivals {
  int64_t first, last;  // monotonic, ns; 0 = nobody was waited for
  int lastRank;
};

template <class Mem>
void beginRecord(Mem& mem, FlightRecord* at, const BegunRecord& r) {
  if (!mutated(Mutant::kRecordNotInvalidated)) mem.storeWord(&at->number, 0);
  // Whoever reads one of the words below, or of those that endRecord writes, sees in its second look that the number has changed.
  if (!mutated(Mutant::kRecordWithoutFence)) mem.fenceRelease();
  mem.storeWord(&at->call, r.call);
  mem.storeWord(&at->place, r.place);
  mem.storeWord(&at->bytes, r.bytes);
  mem.storeWord(&at->collective, r.collective);
  mem.storeWord(&at->enqueued, r.enqueued);
  mem.storeWord(&at->replay, r.replay);
  mem.storeWord(&at->done, 0);
  if (mutated(Mutant::kRecordNumberRelaxed)) {
    mem.storeWord(&at->number, r.number);
  } else {
    mem.storeWordRelease(&at->number, r.number);
  }
}

// call: as at the begin, with algorithm and outcome. waited: nobody, where its times are 0.
template <class Mem>
void endRecord(Mem& mem, FlightRecord* at, uint64_t call, const Arrivals& waited, uint64_t done) {
  if (waited.last != 0) {
    call |= kHasArrivals;
    mem.storeWord(&at->firstArrival, static_cast<uint64_t>(waited.first));
    mem.storeWord(&at->lastArrival, static_cast<uint64_t>(waited.last));
    mem.storeWord(&at->lastRank, static_cast<uint64_t>(waited.lastRank));
  }
  mem.storeWord(&at->call, call);
  if (mutated(Mutant::kRecordDoneRelaxed)) {
    mem.storeWord(&at->done, done);
  } else {
    mem.storeWordRelease(&at->done, done);
  }
}

// False where nothing is there or the record is being written over. Of an operation that has not ended, what is written at
// the end is to be ignored; so are arrivals without kHasArrivals. The daemon's reader (server/flight) is this one in Go.
template <class Mem>
bool readRecord(Mem& mem, const FlightRecord* at, FlightRecord* out) {
  out->number = mem.loadWordAcquire(&at->number);
  if (out->number == 0) return false;
  out->done = mutated(Mutant::kRecordDoneReadRelaxed) ? mem.loadWord(&at->done) : mem.loadWordAcquire(&at->done);
  out->call = mem.loadWord(&at->call);
  out->place = mem.loadWord(&at->place);
  out->bytes = mem.loadWord(&at->bytes);
  out->collective = mem.loadWord(&at->collective);
  out->enqueued = mem.loadWord(&at->enqueued);
  out->replay = mem.loadWord(&at->replay);
  if (out->done != 0 && (out->call & kHasArrivals) != 0) {
    out->firstArrival = mem.loadWord(&at->firstArrival);
    out->lastArrival = mem.loadWord(&at->lastArrival);
    out->lastRank = mem.loadWord(&at->lastRank);
  }
  if (!mutated(Mutant::kRecordReadWithoutFence)) mem.fenceAcquire();
  return mem.loadWord(&at->number) == out->number;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLIGHT_RECORD_H_
