// This rank's side of the flight record (kernels/include/railhead/base/flight_record.h): one record for each operation of a comm.
// It is written on the path of every call, so it reads no clock but the processor's time stamp.
#ifndef RAILHEAD_CLIENT_COMM_FLIGHT_H_
#define RAILHEAD_CLIENT_COMM_FLIGHT_H_

#include <stdint.h>

#include "host/mem.h"
#include "host/ticks.h"
#include "railhead/base/flight_record.h"
#include "wire.h"

namespace railhead::client {

// The monotonic clock, read by way of the time stamp. Every kRefreshNs of use it looks at the real one, so that a wrong rate
// does not add up; until it knows the rate, and where the stamp cannot be trusted, it always does.
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
  int64_t firstNs_ = 0;  // one pair of clock and stamp, from the start; the rate is what came between it and the newest
  uint64_t firstTicks_ = 0;
  int64_t baseNs_ = 0;   // the newest pair
  uint64_t baseTicks_ = 0;
  uint64_t scale_ = 0;   // ns of a tick, 32 bits behind the point
  uint64_t refreshTicks_ = 0;  // how long the newest pair is good; scale_ times it fits 64 bits. 0 = read the clock
};

// Where an operation runs, on a device with streams: numbers of the stream, of the captured graph, and of this launch of it.
struct RunsOn {
  uint32_t stream, graph, replay;
};

class Flight {
 public:
  // ring is this rank's, in the control segment; nullptr = no record is kept.
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
  // Of the operation begun last. stop: why it gave up.
  void end(uint32_t algo, Stop stop) {
    if (!on() || record_ == nullptr) return;
    const uint64_t call = call_ | uint64_t{algo & 0xff} << 24 | static_cast<uint64_t>(stop) << 32;
    Memory memory;
    endRecord(memory, record_, call, arrivals_, static_cast<uint64_t>(clock_.now()));
    record_ = nullptr;
  }

 private:
  struct Isa;  // of no instruction set in particular
  using Memory = host::Mem<Isa>;

  FlightRecord* ring_ = nullptr;
  FlightRecord* record_ = nullptr;  // of the operation that runs
  uint64_t call_ = 0;
  Arrivals arrivals_ = {};
  FlightClock clock_;
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_FLIGHT_H_
