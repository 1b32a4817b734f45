// The clock of flight records. Until it has measured the rate of the time stamp counter over 10 ms, its times are those of the real clock.
#include "check.h"
#include "comm/flight.h"
#include "host/futex.h"

using railhead::client::FlightClock;
using railhead::host::nowNs;

namespace {

constexpr int64_t kMs = 1000 * 1000;

// A rate from a shorter interval would be wrong by whatever passes between the readings of the clock and of the counter.
void tellsTheRealTimeAtFirst() {
  const int64_t begun = nowNs();
  FlightClock clock;
  clock.start();
  int readings = 0;
  for (int64_t after = begun; after < begun + 3 * kMs;) {
    const int64_t before = nowNs(), told = clock.now();
    after = nowNs();
    if (after >= begun + 10 * kMs) break;  // the thread was stopped meanwhile
    CHECK(before <= told && told <= after);
    readings++;
  }
  CHECK(readings > 0 || nowNs() >= begun + 10 * kMs);
}

}  // namespace

int main() {
  for (int i = 0; i < 10; i++) tellsTheRealTimeAtFirst();
  return 0;
}
