#include "comm/flight.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "host/futex.h"

namespace railhead::client {

static_assert(sizeof(FlightRecord) == sizeof(rhw_flight_record), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, number) == offsetof(rhw_flight_record, number), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, call) == offsetof(rhw_flight_record, call), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, place) == offsetof(rhw_flight_record, place), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, bytes) == offsetof(rhw_flight_record, bytes), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, collective) == offsetof(rhw_flight_record, collective), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, enqueued) == offsetof(rhw_flight_record, enqueued), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, done) == offsetof(rhw_flight_record, done), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, replay) == offsetof(rhw_flight_record, replay), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, firstArrival) == offsetof(rhw_flight_record, first_arrival), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, lastArrival) == offsetof(rhw_flight_record, last_arrival), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, lastRank) == offsetof(rhw_flight_record, last_rank), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, deviceBegin) == offsetof(rhw_flight_record, device_begin), "flight_record.h and segment.h");
static_assert(offsetof(FlightRecord, deviceEnd) == offsetof(rhw_flight_record, device_end), "flight_record.h and segment.h");

namespace {

// An error of 100 ns in a pair is 10 ppm over kCalibrateNs, and so 0.5 us at the next refresh.
constexpr int64_t kCalibrateNs = 10 * 1000 * 1000;
constexpr int64_t kRefreshNs = 50 * 1000 * 1000;

// The kernel checks whether the counters of all processors agree and switches to another clock source if they do not. The hypervisor
// clocks in the list are derived from the counter, so the kernel uses one of them only while it trusts the counter.
bool kernelTrustsTicks() {
  char name[32] = "";
  const int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t n = read(fd, name, sizeof name - 1);
  close(fd);
  if (n <= 0) return false;
  name[strcspn(name, "\n")] = '\0';
  static const char* const trusted[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"};
  for (const char* t : trusted) {
    if (strcmp(name, t) == 0) return true;
  }
  return false;
}

}  // namespace

void FlightClock::start() {
  steady_ = host::ticksAreSteady() && kernelTrustsTicks();
  firstTicks_ = host::ticks();
  firstNs_ = host::nowNs();
}

int64_t FlightClock::refresh() {
  const int64_t ns = host::nowNs();
  const uint64_t ticks = host::ticks();
  if (!steady_ || ns - firstNs_ < kCalibrateNs) return ns;
  // Nanoseconds of a tick, with 32 fraction bits. Integers, because this runs in the caller's floating-point environment.
  __extension__ using Wide = unsigned __int128;
  constexpr uint64_t kOneNs = uint64_t{1} << 32;
  const uint64_t passed = ticks - firstTicks_;
  const Wide scale = passed == 0 ? 0 : (static_cast<Wide>(ns - firstNs_) << 32) / passed;
  // Plausible rates are 1 MHz to 16 GHz. A counter that went backwards is rejected too.
  if (!(scale > kOneNs / 16 && scale < kOneNs * 1000)) {
    steady_ = false;
    refreshTicks_ = 0;
    return ns;
  }
  scale_ = static_cast<uint64_t>(scale);
  refreshTicks_ = (uint64_t{kRefreshNs} << 32) / scale_;
  baseNs_ = ns;
  baseTicks_ = ticks;
  return ns;
}

void Flight::start(void* ring) {
  // Touch the pages now, so that no operation takes a page fault.
  memset(ring, 0, RHW_FLIGHT_RECORDS * sizeof(FlightRecord));
  ring_ = static_cast<FlightRecord*>(ring);
  clock_.start();
}

}  // namespace railhead::client
