// Rings of ranks that are threads (group.h): any order of ranks, 1 to 4 channels, both protocols, all types and reductions, counts from 0
// to several rounds, in place and not. Calls follow each other without a pause, so that slots are used again and counters wrap.
//
// Usage: rings MODE WORLD FIRST_CHUNK SPIN_NS ROUNDS SEED
//   run      checks every result
//   late     the last rank is missing: the others end at the deadline and name a rank
//   abort    the abort word is set while ranks wait for the last one
#include <math.h>

#include <algorithm>

#include "group.h"
#include "host/futex.h"
#include "railhead/exchange/ll_pipes.h"
#include "railhead/exchange/ring.h"

using namespace railhead;
using host::Reduction;
using host::Type;

namespace {

constexpr size_t kMostCount = 3000;
constexpr size_t kMostBytes = 16 * kMostCount * 8;

// -2, -1, 0, 1 and 2 in each type (in an unsigned one, -1 and -2 wrap). Sums and products of 9 of them are exact in the accumulator, so
// the order does not matter and one-shot gives the same bits.
void storeSmall(Type type, char* at, int v) {
  static const uint16_t half[] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000};
  static const uint8_t e4m3[] = {0xc0, 0xb8, 0, 0x38, 0x40};
  const float f = static_cast<float>(v);
  const double d = v;
  const int64_t i64 = v;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const auto upper = static_cast<uint16_t>(bits >> 16);
  const auto e5m2 = static_cast<uint8_t>(half[v + 2] >> 8);
  switch (type) {
    case Type::kF32: memcpy(at, &f, 4); break;
    case Type::kF64: memcpy(at, &d, 8); break;
    case Type::kBF16: memcpy(at, &upper, 2); break;
    case Type::kF16: memcpy(at, &half[v + 2], 2); break;
    case Type::kE4M3: memcpy(at, &e4m3[v + 2], 1); break;
    case Type::kE5M2: memcpy(at, &e5m2, 1); break;
    default: memcpy(at, &i64, host::bytesOf(type)); break;
  }
}

// Any number around 1, with all digits of the type; f32, f64 and bf16.
void storeAny(Type type, char* at, uint64_t h) {
  const double d = static_cast<double>(static_cast<int64_t>(h)) * 0x1p-63;
  const auto f = static_cast<float>(d);
  memcpy(at, type == Type::kF64 ? static_cast<const void*>(&d) : &f, type == Type::kF64 ? 8 : 4);
  if (type != Type::kBF16) return;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const auto upper = static_cast<uint16_t>(bits >> 16);
  memcpy(at, &upper, 2);
}
long double valueOf(Type type, const char* at) {
  float f = 0;
  double d = 0;
  switch (type) {
    case Type::kF64: memcpy(&d, at, 8); return d;
    case Type::kBF16: memcpy(reinterpret_cast<char*>(&f) + 2, at, 2); return f;
    default: memcpy(&f, at, 4); return f;
  }
}

enum class What { kAllReduce, kReduceScatter, kAllGather, kBroadcast };

// What all ranks agree on, drawn from one number.
struct Round {
  Round(const Options& o, int number) : shared(mix(o.seed ^ static_cast<uint64_t>(number))), plan(ringInRankOrder(o.world)) {
    what = static_cast<What>(pick(4));
    if (what == What::kBroadcast && pick(2) != 0) what = What::kAllReduce;
    type = static_cast<Type>(pick(host::kTypes));
    isExact = !(type == Type::kF32 || type == Type::kF64 || type == Type::kBF16) || pick(2) == 0;
    op = {isExact ? static_cast<Reduction>(pick(6)) : Reduction::kSum, {}};
    // The factor of floats of 8 and 16 bits is an f32.
    const bool own = host::bytesOf(type) > 2 || type >= Type::kI8;
    if (op.kind == Reduction::kPreMulSum) storeSmall(own ? type : Type::kF32, reinterpret_cast<char*>(op.scalar), 2);
    const size_t mostOf[] = {2, 40, 500, kMostCount};
    count = pick(mostOf[pick(4)] + 1);
    inPlace = pick(2) != 0;
    root = static_cast<int>(pick(static_cast<size_t>(o.world)));
    uint64_t h = o.seed;  // the order of a group is fixed
    for (int i = o.world - 1; i > 0; i--) std::swap(plan.order[i], plan.order[(h = mix(h)) % (static_cast<uint64_t>(i) + 1)]);
    plan.channels = 1 + static_cast<int>(pick(kMaxRingChannels));
    protocol = pick(2) != 0 ? RingProtocol::kLL : RingProtocol::kSimple;
  }
  size_t pick(size_t n) {
    shared = mix(shared);
    return static_cast<size_t>(shared >> 8) % n;
  }

  uint64_t shared;
  What what;
  Type type;
  bool isExact;
  host::ReduceOp op;
  size_t count;
  bool inPlace;
  int root;
  RingPlan plan;
  RingProtocol protocol;
};

// Runs the round's operation on a rank. In place selects the kind of broadcast too.
host::Outcome runRound(const Round& r, const FlagTeam& team, const char* send, char* recv) {
  static constexpr host::Collective collectives[] = {host::kAllReduce, host::kReduceScatter, host::kAllGather, host::kBroadcast};
  host::KernelCall call = callOf(team, r.plan, r.type, send, recv, r.count);
  call.reduce = r.op;
  call.root = r.root;
  call.protocol = r.protocol;
  const bool down = r.what == What::kBroadcast && !r.inPlace;
  return kernelOf(down ? host::kTree : host::kRing, collectives[static_cast<int>(r.what)])(call);
}

class Rank {
 public:
  // results: a buffer for each rank, which the other ranks read between two barriers.
  Rank(const Options& o, FlagTeam& team, std::vector<std::vector<char>>& results)
      : o_(o), team_(team), results_(results), send_(kMostBytes), recv_(kMostBytes), other_(kMostBytes) {}

  void run(int number) {
    Round r(o_, number);
    parts_ = static_cast<size_t>(o_.world);
    maybeDelay(mix(r.shared + static_cast<uint64_t>(team_.rank)));
    const size_t bytes = host::bytesOf(r.type), part = r.count * bytes, self = static_cast<size_t>(team_.rank);
    const size_t sendParts = r.what == What::kReduceScatter ? parts_ : 1, recvParts = r.what == What::kAllGather ? parts_ : 1;
    fill(r, number, team_.rank, send_.data(), sendParts);
    team_.call = sign({1 + static_cast<uint32_t>(r.what), 0, 0, kNoRoot, r.count, 0, static_cast<uint32_t>(number), 0});
    std::fill(recv_.begin(), recv_.end(), '\x5a');
    char* send = send_.data();
    char* recv = recv_.data();
    if (r.inPlace && r.what == What::kAllGather) memcpy(send = recv + self * part, send_.data(), part);
    if (r.inPlace && r.what != What::kAllGather) memcpy(recv, send, sendParts * part), send = recv;
    if (r.inPlace && r.what == What::kReduceScatter) recv = send + self * part;
    if (r.what == What::kBroadcast && team_.rank == r.root) memcpy(recv, send, part);
    CHECK(runRound(r, team_, send, recv).stop == Stop::kNone);
    if (!r.inPlace) CHECK(recv_[recvParts * part] == '\x5a');  // nothing is written after the result
    check(r, number, recv, part, recvParts);
    sameEverywhere(r, recv, part);
  }

 private:
  void fill(const Round& r, int number, int rank, char* to, size_t parts) const {
    const size_t bytes = host::bytesOf(r.type);
    for (size_t i = 0; i < parts * r.count; i++) {
      const uint64_t h = mix(mix(o_.seed + static_cast<uint64_t>(rank)) + static_cast<uint64_t>(number) * 1000000 + i);
      if (r.isExact) {
        storeSmall(r.type, to + i * bytes, static_cast<int>(h >> 8 & 0xffff) % 5 - 2);
      } else {
        storeAny(r.type, to + i * bytes, h);
      }
    }
  }

  void check(const Round& r, int number, const char* got, size_t part, size_t parts) {
    const size_t self = static_cast<size_t>(team_.rank);
    if (r.what == What::kAllGather) {
      for (size_t q = 0; q < parts; q++) {
        fill(r, number, static_cast<int>(q), other_.data(), 1);
        CHECK(part == 0 || memcmp(got + q * part, other_.data(), part) == 0);
      }
    } else if (r.what == What::kBroadcast) {
      fill(r, number, r.root, other_.data(), 1);
      CHECK(part == 0 || memcmp(got, other_.data(), part) == 0);
    } else {
      const bool scatters = r.what == What::kReduceScatter;
      if (r.isExact) {
        checkOneshot(r, number, got, scatters);
      } else {
        checkSums(r, number, got, scatters ? self * r.count : 0, scatters ? parts_ : 1);
      }
    }
  }
  // The result has the bits of one-shot.
  void checkOneshot(const Round& r, int number, const char* got, bool scatters) {
    const size_t part = r.count * host::bytesOf(r.type);
    fill(r, number, team_.rank, send_.data(), scatters ? parts_ : 1);
    host::KernelCall call = callOf(team_, r.plan, r.type, send_.data(), other_.data(), r.count);
    call.reduce = r.op;
    CHECK(kernelOf(host::kOneshot, scatters ? host::kReduceScatter : host::kAllReduce)(call).stop == Stop::kNone);
    CHECK(part == 0 || memcmp(got, other_.data(), part) == 0);
  }
  // A sum of x, rounded after each addition and at the end, has an error of at most world * epsilon * sum |x|, and half a unit in the
  // last place of the type.
  void checkSums(const Round& r, int number, const char* got, size_t first, size_t parts) {
    const size_t bytes = host::bytesOf(r.type);
    std::vector<long double> sum(r.count), magnitude(r.count);
    for (int q = 0; q < o_.world; q++) {
      fill(r, number, q, other_.data(), parts);
      for (size_t i = 0; i < r.count; i++) {
        const long double x = valueOf(r.type, other_.data() + (first + i) * bytes);
        sum[i] += x;
        magnitude[i] += fabsl(x);
      }
    }
    const long double adding = r.type == Type::kF64 ? 0x1p-53L : 0x1p-24L, rounding = r.type == Type::kBF16 ? 0x1p-8L : 0;
    for (size_t i = 0; i < r.count; i++) {
      const long double error = fabsl(valueOf(r.type, got + i * bytes) - sum[i]);
      CHECK(error <= o_.world * adding * magnitude[i] + rounding * (fabsl(sum[i]) + o_.world * adding * magnitude[i]));
    }
  }

  // The bits are the same on all ranks.
  void sameEverywhere(const Round& r, const char* got, size_t part) {
    if (r.what != What::kAllReduce || r.isExact) return;
    auto& own = results_[static_cast<size_t>(team_.rank)];
    own.assign(got, got + part);
    CHECK(host::barrier(team_).stop == Stop::kNone);
    for (const auto& result : results_) CHECK(result == own);
    CHECK(host::barrier(team_).stop == Stop::kNone);
  }

  const Options& o_;
  FlagTeam& team_;
  std::vector<std::vector<char>>& results_;
  std::vector<char> send_, recv_, other_;
  size_t parts_ = 0;
};

// Counters of pipes may start anywhere, but those of a writer and its reader are equal.
void startAt(Group& group, int world, uint32_t chunk) {
  for (int from = 0; from < world; from++) {
    for (int to = 0; to < world; to++) {
      char* writer = group.teams[0].heap(from);
      char* reader = group.teams[0].heap(to);
      const auto set = [&](char* heap, uint64_t at) { reinterpret_cast<Flag*>(heap + at)->value = chunk; };
      const FlagTeam& team = group.teams[0];
      const uint64_t toLine = static_cast<uint64_t>(to) * kFlagLineBytes, fromLine = static_cast<uint64_t>(from) * kFlagLineBytes;
      set(writer, kTailsOffset + toLine);
      set(writer, kResultTailsOffset + toLine);
      set(reader, kHeadsOffset + fromLine);
      set(reader, kResultHeadsOffset + fromLine);
      for (int channel = 0; channel < kMaxRingChannels; channel++) {
        set(writer, llPipeOffset(team, channel));
        set(writer, llPipeOffset(team, channel) + kFlagLineBytes);
      }
    }
  }
}

void runAll(const Options& o) {
  Group group(o, 60000 * kMs);
  startAt(group, o.world, o.firstEpoch);
  std::vector<std::vector<char>> results(static_cast<size_t>(o.world));
  onRanks(o.world, [&](int r) {
    Rank rank(o, group.teams[static_cast<size_t>(r)], results);
    for (int n = 0; n < o.rounds; n++) rank.run(n);
  });
}

// The last rank is missing: all others fail and name a rank.
void withoutOne(const Options& o, bool abortIt) {
  const uint64_t all = (uint64_t{1} << o.world) - 1;
  for (int n = 0; n < o.rounds; n++) {
    Group group(o, abortIt ? 60000 * kMs : 20 * kMs);
    startAt(group, o.world, o.firstEpoch);
    onRanks(o.world, [&](int rank) {
      Round r(o, n);
      if (rank == o.world - 1) {
        if (!abortIt) return;
        const timespec pause = {0, static_cast<long>(r.shared % 200000)};
        nanosleep(&pause, nullptr);
        __atomic_store_n(&group.abortWord, 1, __ATOMIC_RELEASE);
        host::futexWakeAll(&group.abortWord);
        return;
      }
      std::vector<char> send(kMostBytes), recv(kMostBytes);
      const FlagTeam& team = group.teams[static_cast<size_t>(rank)];
      if (r.what == What::kBroadcast) r.what = What::kAllGather;  // a root need not wait for other ranks
      const auto out = runRound(r, team, send.data(), recv.data());
      CHECK(out.stop == (abortIt ? Stop::kAborted : Stop::kTimeout));
      CHECK(out.missing != 0 && (out.missing & ~all) == 0 && (out.missing >> rank & 1) == 0);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 7);
  const int world = atoi(argv[2]);
  CHECK(world >= 2 && world <= 16);
  const Options o = {world, world, static_cast<uint32_t>(strtoul(argv[3], nullptr, 0)), atoll(argv[4]), atoi(argv[5]), strtoull(argv[6], nullptr, 0)};
  switch (argv[1][0]) {
    case 'r': runAll(o); break;
    case 'l': withoutOne(o, false); break;
    case 'a': withoutOne(o, true); break;
    default: CHECK(!"unknown mode");
  }
  return 0;
}
