// This rank's side of the flight record (kernels/include/railhead/base/flight_record.h): one record for each operation of a comm. Every
// call writes one, so it reads only the processor's time stamp counter, not the clock.
#ifndef RAILHEAD_CLIENT_COMM_FLIGHT_H_
#define RAILHEAD_CLIENT_COMM_FLIGHT_H_

#include <stdint.h>

#include "base/rank.h"
#include "host/mem.h"
#include "host/ticks.h"
#include "railhead/base/flight_record.h"
#include "wire.h"

namespace railhead::client {

// The monotonic clock, extrapolated from the time stamp counter. It reads the real clock every kRefreshNs, so that an error of the rate
// does not accumulate. It reads the real clock each time while the rate is unknown, or if the counter cannot be trusted.
class FlightClock {
 public:
  void start();
  int64_t now() {
    const uint64_t since = host::ticks() - baseTicks_;
    if (__builtin_expect(since >= refreshTicks_, 0)) return refresh();
    return baseNs_ + static_cast<int64_t>(since * scale_ >> 32);
  }

 private:
  int64_t refresh();

  bool steady_ = false;
  int64_t firstNs_ = 0;  // first pair of clock and counter; the rate is measured from it to the newest pair
  uint64_t firstTicks_ = 0;
  int64_t baseNs_ = 0;   // newest pair
  uint64_t baseTicks_ = 0;
  uint64_t scale_ = 0;   // ns per tick, fixed point with 32 fraction bits
  uint64_t refreshTicks_ = 0;  // validity of the newest pair; its product with scale_ fits 64 bits. 0 = read the clock
};

// Where an operation runs on a device with streams: the numbers of the stream, of the captured graph, and of the launch of the graph.
struct RunsOn {
  uint32_t stream, graph, replay;
};

class Flight {
 public:
  // ring is this rank's part of the control segment; nullptr = no records.
  void start(void* ring);
  bool on() const { return ring_ != nullptr; }
  Arrivals* arrivals() { return on() ? &arrivals_ : nullptr; }

  void begin(uint64_t number, uint32_t op, const CallDetails& details, uint64_t bytes, uint64_t collective, const RunsOn& on) {
    if (ring_ == nullptr) return;
    arrivals_ = {};
    record_ = ring_ + number % RHW_FLIGHT_RECORDS;
    call_ = op | details.dtype << 8 | details.reduction << 16 | uint64_t{details.captured} << kRecordCapturedShift;
    Memory memory;
    beginRecord(memory, record_, {number, call_, details.root | uint64_t{on.stream} << 32, bytes, collective, static_cast<uint64_t>(clock_.now()),
                                  on.graph | uint64_t{on.replay} << 32});
  }
  // The rank that arrived last among those that the newest operation waited for. Any rank if it waited for none.
  LocalRank lastArrival() const { return LocalRank{arrivals_.lastRank}; }
  // Ends the record of the newest operation. stop: why the operation stopped. last: lastArrival() as a world rank.
  void end(uint32_t algo, Stop stop, WorldRank last) {
    if (!on() || record_ == nullptr) return;
    arrivals_.lastRank = number(last);
    const uint64_t call = call_ | uint64_t{algo & 0xff} << 24 | static_cast<uint64_t>(stop) << 32;
    Memory memory;
    endRecord(memory, record_, call, arrivals_, static_cast<uint64_t>(clock_.now()));
    record_ = nullptr;
  }

 private:
  using Memory = host::Mem;

  FlightRecord* ring_ = nullptr;
  FlightRecord* record_ = nullptr;  // of the running operation
  uint64_t call_ = 0;
  Arrivals arrivals_ = {};
  FlightClock clock_;
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_FLIGHT_H_
