// Pull among ranks of which one offers memory that is not in its windows (group.h).
//
// Usage: bad_offers WORLD SPIN_NS ROUNDS SEED
#include <atomic>

#include "group.h"
#include "host/futex.h"

using namespace railhead;

namespace {

constexpr uint32_t kRegion = 7;
constexpr size_t kRegionBytes = 4096;

// The four operations that take offers. count: elements of a part.
host::Outcome pull(const FlagTeam& team, int operation, uint64_t send, uint64_t recv, float* own, size_t count) {
  static constexpr host::Collective collectives[] = {host::kAllReduce, host::kReduceScatter, host::kAllGather, host::kAllToAll};
  const RingPlan ring = ringInRankOrder(team.worldSize);
  host::KernelCall call = callOf(team, ring, host::Type::kF32, own, operation == 2 ? own + kMaxCount : own, count);
  call.sendOffer = send;
  call.recvOffer = recv;
  return kernelOf(host::kPull, collectives[operation])(call);
}

size_t bytesOf(const Options& o, int operation, size_t count) {
  const bool parts = operation == 1 || operation == 3;
  return count * sizeof(float) * (parts ? static_cast<size_t>(o.world) : 1);
}

// Bad offers: beyond the end of the heap, across it, in the scratch, in regions that do not exist, and beyond and across the end of a
// region.
uint64_t badOffer(const FlagTeam& team, size_t bytes, uint64_t h) {
  const uint64_t far = uint64_t{1} << kOfferRegionShift;
  const uint64_t offers[] = {team.heapBytes - bytes + 1, team.heapBytes + 64, far - 1, kWindow - 1, 0, far, far * kMaxRegions, far * 65535,
                             far * (kRegion + 1), far * kRegion + kRegionBytes + 1, far * kRegion + kRegionBytes - bytes + 1, kNoOffset - 1};
  return offers[h % (sizeof offers / sizeof *offers)];
}

// A rank makes a bad offer. It does so once, or a thread changes the offer all the time while the others read. A rank that detects it
// names that rank. In some rounds another rank offers no memory: pull would then decline, but a bad offer ends the operation nevertheless.
void round(const Options& o, uint64_t h) {
  Group group(o, 20000 * kMs);
  const int bad = static_cast<int>(h % static_cast<uint64_t>(o.world)), operation = static_cast<int>(h >> 8 & 3);
  const bool keepsChanging = (h >> 10 & 1) != 0;
  const size_t count = 1 + static_cast<size_t>(h >> 16) % (kRegionBytes / sizeof(float) / static_cast<size_t>(o.world));
  const size_t bytes = bytesOf(o, operation, count);
  std::vector<char> registered(static_cast<size_t>(o.world) * kRegionBytes);
  std::vector<char*> parts;
  for (int r = 0; r < o.world; r++) parts.push_back(&registered[static_cast<size_t>(r) * kRegionBytes]);
  FlagRegion regions[kMaxRegions] = {};
  regions[kRegion] = {kRegionBytes, parts.data()};
  for (FlagTeam& team : group.teams) team.regions = regions;

  const uint64_t good = (h >> 11 & 1) != 0 ? kWindow : uint64_t{kRegion} << kOfferRegionShift;
  const uint64_t nonsense = badOffer(group.teams[0], bytes, h >> 12);
  const bool inRecv = operation == 0 && (h >> 40 & 1) != 0;
  const int without = !keepsChanging && (h >> 41 & 1) != 0 ? static_cast<int>((h >> 42) % static_cast<uint64_t>(o.world)) : -1;
  std::atomic<int> ended{0};
  onRanks(o.world + (keepsChanging ? 1 : 0), [&](int rank) {
    if (rank == o.world) {
      ScratchHeader* header = group.header(bad);
      for (uint64_t n = h; ended < o.world; n = mix(n)) {
        __atomic_store_n(inRecv ? &header->recvOffset : &header->sendOffset, n % 2 == 0 ? good : badOffer(group.teams[0], bytes, n >> 1), __ATOMIC_RELAXED);
      }
      return;
    }
    std::vector<float> own(2 * kMaxCount);
    const bool isBad = rank == bad && !keepsChanging;
    const uint64_t other = rank == without && rank != bad ? kNoOffset : good;
    const host::Outcome outcome = pull(group.teams[static_cast<size_t>(rank)], operation, isBad && !inRecv ? nonsense : other, isBad && inRecv ? nonsense : other,
                                       own.data(), count);
    CHECK(!outcome.declined);
    if (outcome.stop == Stop::kBadOffer) {  // as the client does
      CHECK(outcome.missing == uint64_t{1} << bad);
      __atomic_store_n(&group.abortWord, 1, __ATOMIC_RELEASE);
      host::futexWakeAll(&group.abortWord);
    } else if (outcome.stop == Stop::kNone) {
      CHECK(keepsChanging);
    } else {
      CHECK(outcome.stop == Stop::kAborted);
    }
    ended++;
  });
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 5);
  Options o = {atoi(argv[1]), 1, 0, atoll(argv[2]), atoi(argv[3]), strtoull(argv[4], nullptr, 0)};
  for (int i = 0; i < o.rounds; i++) round(o, mix(o.seed + static_cast<uint64_t>(i)));
  return 0;
}
