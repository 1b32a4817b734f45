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

struct FlightRecord {
  // Of the operation, from 1; 0 = nothing is here, or it is being written. Writer: 0 (relaxed) before the words below are
  // written over, with a release fence behind it; the number (release) behind them. Readers: acquire, and a second look
  // (relaxed) behind an acquire fence.
  uint64_t number;
  // From bit 0, 8 bits each: operation, element type, reduction, root or peer (as in a Signature), algorithm, outcome (Stop),
  // rank that was waited for last, zero. The upper half is written at the end.
  uint64_t call;
  uint64_t bytes;
  uint64_t collective;  // number of the collective, the same on every rank; 0 = not all ranks take part
  uint64_t enqueued;    // times are ns of the monotonic clock
  // Of the ranks that this one had to wait for; 0 = none. Written at the end.
  uint64_t firstArrival, lastArrival;
  // When the operation ended, or gave up; 0 = it has not. Writer: release, behind what is written at the end. Readers: acquire.
  uint64_t done;
};
static_assert(sizeof(FlightRecord) == 64, "a cache line");

// What an operation has waited for: written in its waits, read at its end, by its rank alone.
struct Arrivals {
  int64_t first, last;  // monotonic, ns; 0 = nobody was waited for
  int lastRank;
};

template <class Mem>
void beginRecord(Mem& mem, FlightRecord* at, const FlightRecord& r) {
  if (!mutated(Mutant::kRecordNotInvalidated)) mem.storeWord(&at->number, 0);
  // Whoever reads one of the words below sees, in its second look, that the number has changed.
  if (!mutated(Mutant::kRecordWithoutFence)) mem.fenceRelease();
  mem.storeWord(&at->call, r.call);
  mem.storeWord(&at->bytes, r.bytes);
  mem.storeWord(&at->collective, r.collective);
  mem.storeWord(&at->enqueued, r.enqueued);
  mem.storeWord(&at->firstArrival, 0);
  mem.storeWord(&at->lastArrival, 0);
  mem.storeWord(&at->done, 0);
  if (mutated(Mutant::kRecordNumberRelaxed)) {
    mem.storeWord(&at->number, r.number);
  } else {
    mem.storeWordRelease(&at->number, r.number);
  }
}

template <class Mem>
void endRecord(Mem& mem, FlightRecord* at, uint64_t call, uint64_t first, uint64_t last, uint64_t done) {
  mem.storeWord(&at->call, call);
  mem.storeWord(&at->firstArrival, first);
  mem.storeWord(&at->lastArrival, last);
  if (mutated(Mutant::kRecordDoneRelaxed)) {
    mem.storeWord(&at->done, done);
  } else {
    mem.storeWordRelease(&at->done, done);
  }
}

// False where nothing is there or the record is being written over. Of an operation that has not ended, what is written at
// the end is to be ignored. The daemon's reader (server/flight) is this one in Go.
template <class Mem>
bool readRecord(Mem& mem, const FlightRecord* at, FlightRecord* out) {
  out->number = mem.loadWordAcquire(&at->number);
  if (out->number == 0) return false;
  out->done = mutated(Mutant::kRecordDoneReadRelaxed) ? mem.loadWord(&at->done) : mem.loadWordAcquire(&at->done);
  out->call = mem.loadWord(&at->call);
  out->bytes = mem.loadWord(&at->bytes);
  out->collective = mem.loadWord(&at->collective);
  out->enqueued = mem.loadWord(&at->enqueued);
  out->firstArrival = mem.loadWord(&at->firstArrival);
  out->lastArrival = mem.loadWord(&at->lastArrival);
  if (!mutated(Mutant::kRecordReadWithoutFence)) mem.fenceAcquire();
  return mem.loadWord(&at->number) == out->number;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLIGHT_RECORD_H_
