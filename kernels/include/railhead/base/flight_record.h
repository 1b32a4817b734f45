// The flight record: a rank's last operations, as a ring of records in shared memory. The only writer is the rank. The daemon reads it at
// any time, also after the rank has died. Readers take no lock and never delay the writer.
//
// A record is a sequence lock whose sequence is the operation's number. Numbers only grow, so an overwritten record never gets its old
// number again. The end of an operation is published separately, by `done`.
#ifndef RAILHEAD_KERNELS_FLIGHT_RECORD_H_
#define RAILHEAD_KERNELS_FLIGHT_RECORD_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"

namespace railhead {

// Two cache lines. The second is written only by a GPU, and by an operation that has waited for another rank.
struct alignas(64) FlightRecord {
  // The operation's number, from 1; 0 = the record is empty or being written. Writer: 0 (relaxed), a release fence, the words below, the
  // number (release). Readers: load it (acquire), the words, an acquire fence, and load it again (relaxed) to compare.
  uint64_t number;
  // Bits 0..7 operation, 8..15 element type, 16..23 reduction, 24..31 algorithm, 32..39 outcome (Stop), 40..47 flags (kHasArrivals),
  // 48..63 index of the operation in its captured graph, from 1, 0 = an eager call. Algorithm, outcome and flags are written at the end.
  uint64_t call;
  // Bits 0..31 root or peer (kNoRank = none), 32..63 stream (0 = none).
  uint64_t place;
  uint64_t bytes;
  uint64_t collective;  // number of the collective, the same on every rank; 0 = not all ranks take part
  uint64_t enqueued;    // times are ns of the monotonic clock
  // When the operation ended or gave up; 0 = it is running. Writer: release, after the words written at the end. Readers: acquire.
  uint64_t done;
  // Bits 0..31 captured graph, 32..63 number of its replay; 0 = an eager call.
  uint64_t replay;

  // Written at the end. Valid if the record is done and its call has kHasArrivals.
  uint64_t firstArrival, lastArrival;  // when the first and the last of the ranks arrived that this one had to wait for
  uint64_t lastRank;                   // the rank of lastArrival
  uint64_t deviceBegin, deviceEnd;     // when a GPU began and ended the operation; 0 on a CPU
  uint64_t reserved[3];
};
static_assert(sizeof(FlightRecord) == 128, "two cache lines");

constexpr uint32_t kNoRank = ~uint32_t{0};            // no root and no peer
constexpr uint64_t kHasArrivals = uint64_t{1} << 40;  // of FlightRecord::call

// What a record stores about a call besides its operation. dtype, reduction: 8 bits, 0xff = none. root: root or peer, kNoRank = none.
// captured: index in the captured graph, 16 bits, 0 = an eager call.
struct CallDetails {
  uint32_t dtype, reduction, root, captured;
};
constexpr CallDetails kNoCallDetails = {0xff, 0xff, kNoRank, 0};
constexpr int kRecordCapturedShift = 48;  // of FlightRecord::call

// The fields that are known when an operation begins.
struct BegunRecord {
  uint64_t number, call, place, bytes, collective, enqueued, replay;
};

// When ranks arrived that an operation had to wait for. Reader and writer: its rank.
struct Arrivals {
  int64_t first, last;  // monotonic clock, ns; 0 = it waited for no rank
  int lastRank;
};

template <class Mem>
void beginRecord(Mem& mem, FlightRecord* at, const BegunRecord& r) {
  if (!mutated(Mutant::kRecordNotInvalidated)) mem.storeWord(&at->number, 0);
  // A reader that sees one of the words below, or one that endRecord writes, also sees, when it compares, that the number has changed.
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

// call: as in beginRecord, with algorithm and outcome. waited: its times are 0 if the operation waited for no rank.
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

// False if the record is empty or was overwritten meanwhile. The caller ignores the words written at the end unless done is set, and the
// arrivals unless kHasArrivals is set. The daemon has the same reader in Go (server/flight).
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
