// Runs of the flight record: a rank that overwrites its ring again and again, and readers.
#ifndef RAILHEAD_KERNELS_MODEL_RECORD_RUN_H_
#define RAILHEAD_KERNELS_MODEL_RECORD_RUN_H_

#include <string>
#include <vector>

#include "model/mem.h"
#include "railhead/base/flight_record.h"

namespace railhead::model {

struct RecordShape {
  uint64_t records = 1;     // of the ring
  uint64_t operations = 2;
  int readers = 1;
  int reads = 1;            // reads of every record by each reader
  uint64_t start = 0;       // operations before
};

// Every word of a record is a function of its number, so that a reader detects a torn one.
class RecordRun {
 public:
  RecordRun(World& world, const RecordShape& shape) : world_(world), shape_(shape), ring_(shape.records) {
    world.memory.add(
        ring_.data(), ring_.size() * sizeof(FlightRecord), 8,
        [](size_t unit) {
          static const char* const words[] = {"number", "call", "place", "bytes", "collective", "enqueued", "done", "replay",
                                              "first", "last", "last rank", "device begin", "device end", "", "", ""};
          return "record " + std::to_string(unit / 16) + " " + words[unit % 16];
        },
        [](size_t, int rank, uint64_t) { return rank == 0; });
    world.addFiber(0, 0, [this] { write(); });
    for (int r = 1; r <= shape.readers; r++) world.addFiber(r, 0, [this] { read(); });
  }

  std::string check() const { return ""; }  // readers check at once

 private:
  // Below the bit of kHasArrivals.
  static uint64_t word(uint64_t number, uint64_t which) { return (number * 32 + which) & (kHasArrivals - 1); }
  // Every second operation has waited for another rank.
  static Arrivals waited(uint64_t number) {
    if (number % 2 == 0) return {0, 0, 0};
    return {static_cast<int64_t>(word(number, 6)), static_cast<int64_t>(word(number, 7)), static_cast<int>(word(number, 8) & 0x7fffffff)};
  }

  void write() {
    FlagMem mem(world_);
    for (uint64_t n = shape_.start + 1; n <= shape_.start + shape_.operations; n++) {
      FlightRecord* at = &ring_[n % shape_.records];
      beginRecord(mem, at, {n, word(n, 1), word(n, 2), word(n, 3), word(n, 4), word(n, 5), word(n, 11)});
      endRecord(mem, at, word(n, 9), waited(n), word(n, 10));
      FlightRecord own;
      if (!readRecord(mem, at, &own) || own.number != n || own.done == 0) world_.fail("cannot read the end of its own record %lu", n);
      check(own);
    }
  }

  void read() {
    FlagMem mem(world_);
    for (int i = 0; i < shape_.reads; i++) {
      for (const FlightRecord& at : ring_) {
        FlightRecord r;
        if (readRecord(mem, &at, &r)) check(r);
      }
    }
  }
  void check(const FlightRecord& r) {
    const uint64_t n = r.number;
    const Arrivals w = waited(n);
    const uint64_t ended = word(n, 9) | (w.last != 0 ? kHasArrivals : 0);
    if (r.place != word(n, 2) || r.bytes != word(n, 3) || r.collective != word(n, 4) || r.enqueued != word(n, 5) || r.replay != word(n, 11)) {
      world_.fail("a torn record %lu", n);
    }
    if (r.done == 0) {
      if (r.call != word(n, 1) && r.call != ended) world_.fail("record %lu has the call of another record", n);
      return;
    }
    if (r.done != word(n, 10) || r.call != ended) world_.fail("a torn end of record %lu", n);
    if (w.last == 0) return;
    if (r.firstArrival != static_cast<uint64_t>(w.first) || r.lastArrival != static_cast<uint64_t>(w.last) ||
        r.lastRank != static_cast<uint64_t>(w.lastRank)) {
      world_.fail("torn arrivals of record %lu", n);
    }
  }

  World& world_;
  const RecordShape& shape_;
  std::vector<FlightRecord> ring_;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_RECORD_RUN_H_
