// The host's full fence orders a store before a later load, as Flags needs: a rank stores a flag and then loads the number of sleepers, a
// sleeper adds itself and then loads the flag. At least one of them sees the other's store. The memory model checks the protocol, which
// this program checks on the processor: two threads store to a word each, fence, and load the other's word, in many places in turn.
//
// Usage: store_buffering ROUNDS
#include <atomic>
#include <memory>
#include <thread>

#include "check.h"
#include "host/mem.h"

using namespace railhead;

namespace {

struct Place {
  alignas(64) uint32_t x = 0;
  alignas(64) uint32_t y = 0;
  alignas(64) uint32_t seenX = 0, seenY = 0;
};
constexpr int kPlaces = 2000;

// Both threads begin at about the same time, so that they meet at some of the places.
void sweep(std::atomic<int>* here, Place* places, bool first) {
  host::Mem mem;
  here->fetch_add(1);
  for (int spins = 0; here->load() < 2; spins++) {
    if (spins > 1000) mem.yield();
  }
  for (int i = 0; i < kPlaces; i++) {
    Place& p = places[i];
    mem.storeRelease(first ? &p.x : &p.y, 1);
    mem.fence();
    (first ? p.seenY : p.seenX) = mem.loadRelaxed(first ? &p.y : &p.x);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  for (int round = atoi(argv[1]); round > 0; round--) {
    const std::unique_ptr<Place[]> places(new Place[kPlaces]);
    std::atomic<int> here{0};
    std::thread other([&] { sweep(&here, places.get(), false); });
    sweep(&here, places.get(), true);
    other.join();
    for (int i = 0; i < kPlaces; i++) CHECK(places[i].seenX == 1 || places[i].seenY == 1);
  }
}
