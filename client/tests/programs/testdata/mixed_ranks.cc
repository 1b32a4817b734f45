// World ranks, local ranks and plain numbers mixed up. The compiler must refuse each line that says so, and accept all others
// (TestRanksOfDifferentKindsCannotBeMixedUp).
#include <type_traits>

#include "collectives/operation.h"
#include "comm/comm.h"
#include "comm/rank_list.h"
#include "ep/ep.h"
#include "memory/window.h"

using namespace railhead::client;

namespace {

void assignments(Comm* comm, Operation* o, Region* region, WorldRank world, LocalRank local, int32_t plain) {
  comm->rank = world;
  comm->rank = local;       // refused
  comm->rank = plain;       // refused
  comm->localRank = local;
  comm->localRank = world;  // refused
  comm->localRank = 0;      // refused
  o->root = world;
  o->root = local;          // refused
  o->root = plain;          // refused
  region->staged = local;
  region->staged = world;   // refused
  plain = number(world);
  plain = number(local);
  plain = world;            // refused
  plain = local;            // refused
}

void conversions(const Comm* comm, WorldRank world, LocalRank local, int32_t plain) {
  (void)WorldRank{plain};
  (void)LocalRank{plain};
  (void)WorldRank{local};      // refused
  (void)LocalRank{world};      // refused
  (void)comm->worldOf(local);
  (void)comm->worldOf(world);  // refused
  (void)comm->worldOf(plain);  // refused
  (void)comm->localOf(world);
  (void)comm->localOf(local);  // refused
  (void)comm->localOf(plain);  // refused
  (void)(world == comm->worldOf(local));
  (void)(world == local);      // refused
  (void)(world < local);       // refused
  (void)(local != plain);      // refused
}

void places(Comm* comm, WorldRank world, LocalRank local, int32_t plain) {
  (void)comm->line(local);
  (void)comm->line(world);          // refused
  (void)comm->line(plain);          // refused
  (void)comm->heap(local);
  (void)comm->heap(world);          // refused
  (void)comm->heap(plain);          // refused
  (void)countersOf(comm, local);
  (void)countersOf(comm, world);    // refused
  (void)comm->pids[number(local)];
  (void)comm->pids[world];          // refused
}

void messages(Comm* comm, rhw_join* join, WorldRank world, LocalRank local, int32_t plain) {
  poison(comm, RH_ERR_ABORTED, 0, world, world);
  poison(comm, RH_ERR_ABORTED, 0, local, world);  // refused
  poison(comm, RH_ERR_ABORTED, 0, world, plain);  // refused
  placeOnOneNode(join, world, {});
  placeOnOneNode(join, local, {});                // refused
  Call(*comm->session, "barrier", world);
  Call(*comm->session, "barrier", local);         // refused
  Call(*comm->session, "barrier", plain);         // refused
}

void sets(const Comm* comm, LocalRankSet set, uint64_t mask, WorldRank world, LocalRank local, int32_t plain) {
  set.add(local);
  set.add(world);                             // refused
  set.add(plain);                             // refused
  (void)set.has(local);
  (void)set.has(world);                       // refused
  set = LocalRankSet{mask};
  set = mask;                                 // refused
  (void)LocalRankSet{world};                  // refused
  (void)(set.lowest() == local);
  (void)(set.lowest() == world);              // refused
  (void)(set == comm->localRanks());
  (void)(set == mask);                        // refused
  (void)listRanks(comm, set, nullptr, 0);
  (void)listRanks(comm, mask, nullptr, 0);    // refused
  for (const LocalRank r : set) (void)r;
  for (const WorldRank r : set) (void)r;      // refused
}

// What the library stores instead of numbers and masks is no larger, and copied as they are.
static_assert(sizeof(WorldRank) == sizeof(int32_t) && sizeof(LocalRank) == sizeof(int32_t) && sizeof(LocalRankSet) == sizeof(uint64_t));
static_assert(std::is_trivially_copyable_v<LocalRankSet>);

constexpr int32_t sumOf(LocalRankSet set) {
  int32_t sum = 0;
  for (const LocalRank r : set) sum += number(r);
  return sum;
}
constexpr LocalRankSet kSome{uint64_t{1} << 63 | 5};
static_assert(kSome.has(LocalRank{0}) && !kSome.has(LocalRank{1}) && kSome.has(LocalRank{2}) && kSome.has(LocalRank{63}));
static_assert(!kSome.has(kNoLocalRank) && !kSome.has(LocalRank{64}));
static_assert(kSome.size() == 3 && kSome.lowest() == LocalRank{0} && sumOf(kSome) == 65);
static_assert(LocalRankSet{}.empty() && LocalRankSet{}.lowest() == kNoLocalRank && sumOf(LocalRankSet{}) == 0);
static_assert(LocalRankSet::first(1).mask() == 1 && LocalRankSet::first(5).mask() == 31 && LocalRankSet::first(64).mask() == ~uint64_t{0});

}  // namespace
