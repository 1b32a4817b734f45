// NaN results of ranks whose libraries use different instruction sets. Ranks are threads (group.h), each with the kernels of its own set.
//
// For every pair of the processor's instruction sets and every order of three of them, every floating-point type, reduction and algorithm: a result is the type's
// one NaN where the definition has a NaN, no NaN elsewhere, and all ranks have the same bits.
//
// Usage: nan [SET]...  The sets; without arguments, all that the processor has.
#include <math.h>

#include <algorithm>

#include "formats.h"
#include "group.h"
#include "railhead/exchange/ring.h"

using namespace railhead;
using host::Reduction;
using host::Type;

namespace {

// ---- The elements, by their definition ----

// An element's bits and its value. Values are 0, 1, -1/2, infinities and NaNs: whether a result is a NaN depends on no order and no rounding.
struct Special {
  uint64_t bits;
  double value;
};

struct Floating {
  Type type;
  int exponentBits, mantissaBits;
  bool infinities;

  uint64_t sign() const { return uint64_t{1} << (exponentBits + mantissaBits); }
  uint64_t infinity() const { return sign() - (uint64_t{1} << mantissaBits); }  // without infinities: not one
  // railhead.h states these bits.
  uint64_t nan() const { return infinities ? infinity() | uint64_t{1} << (mantissaBits - 1) : sign() - 1; }
  bool isNaN(uint64_t bits) const { return infinities ? (bits & (sign() - 1)) > infinity() : (bits & (sign() - 1)) == sign() - 1; }

  std::vector<Special> specials() const {
    const uint64_t one = ((uint64_t{1} << (exponentBits - 1)) - 1) << mantissaBits, half = one - (uint64_t{1} << mantissaBits);
    std::vector<Special> all = {{0, 0}, {sign(), -0.0}, {one, 1}, {sign() | half, -0.5}};
    const double inf = static_cast<double>(INFINITY), nan = static_cast<double>(NAN);
    if (!infinities) {
      all.insert(all.end(), {{sign() - 1, nan}, {2 * sign() - 1, nan}});
      return all;
    }
    all.insert(all.end(), {{infinity(), inf}, {sign() | infinity(), -inf}});
    const uint64_t quiet = uint64_t{1} << (mantissaBits - 1);
    for (uint64_t payload : {quiet, 2 * quiet - 1, uint64_t{1}}) {  // the last one is signalling
      all.insert(all.end(), {{infinity() | payload, nan}, {sign() | infinity() | payload, nan}});
    }
    return all;
  }
};

constexpr Floating kTypes[] = {{Type::kF32, 8, 23, true},  {Type::kF64, 11, 52, true}, {Type::kBF16, 8, 7, true},
                               {Type::kF16, 5, 10, true}, {Type::kE4M3, 4, 3, false}, {Type::kE5M2, 5, 2, true}};

// A reduction with the scalar of each rank.
struct Reducing {
  Reduction kind;
  double scalars[3];
};
const double kNegativeNaN = copysign(static_cast<double>(NAN), -1.0);
const Reducing kReductions[] = {
    {Reduction::kSum, {}}, {Reduction::kProd, {}}, {Reduction::kMin, {}}, {Reduction::kMax, {}}, {Reduction::kAvg, {}},
    {Reduction::kPreMulSum, {static_cast<double>(INFINITY), 1, -1}},
    {Reduction::kPreMulSum, {1, kNegativeNaN, 1}},
};

host::ReduceOp opOf(const Floating& f, const Reducing& r, int rank) {
  host::ReduceOp op = {r.kind, {}};
  const double d = r.scalars[rank];
  const float narrow = static_cast<float>(d);
  if (f.type == Type::kF64) {
    memcpy(op.scalar, &d, sizeof d);
  } else {
    memcpy(op.scalar, &narrow, sizeof narrow);
  }
  return op;
}

// Whether the reduction of the ranks' values is a NaN.
bool isNaNOf(const Floating& f, const Reducing& r, const std::vector<double>& values) {
  double sum = 0, product = 1;
  bool any = false;
  for (size_t rank = 0; rank < values.size(); rank++) {
    double v = values[rank];
    if (r.kind == Reduction::kPreMulSum) v *= r.scalars[rank];
    if (isinf(v) && !f.infinities) v = copysign(448, v);  // the contribution saturates
    any = any || isnan(v);
    sum += v;
    product *= v;
  }
  switch (r.kind) {
    case Reduction::kMin:
    case Reduction::kMax: return any;
    case Reduction::kProd: return isnan(product);
    default: return isnan(sum);
  }
}

// ---- The ranks ----

// An operation by an algorithm.
struct Run {
  host::Algorithm algorithm;
  host::Collective collective;
  bool reproducible;
  RingProtocol protocol;

  bool scatters() const { return collective == host::kReduceScatter; }
};

// All that reduce, from the table of kernels.
std::vector<Run> runs() {
  std::vector<Run> all;
  for (uint32_t a = 0; a < host::kAlgorithms; a++) {
    const auto algorithm = static_cast<host::Algorithm>(a);
    for (host::Collective c : {host::kAllReduce, host::kReduceScatter, host::kReduce}) {
      if (kernelOf(algorithm, c) == nullptr) continue;
      all.push_back({algorithm, c, false, RingProtocol::kSimple});
      if (algorithm != host::kRing) continue;
      all.push_back({algorithm, c, true, RingProtocol::kSimple});
      all.push_back({algorithm, c, false, RingProtocol::kLL});
    }
  }
  return all;
}

struct Ranks {
  explicit Ranks(std::vector<const host::KernelSet*> theSets)
      : sets(theSets), world(static_cast<int>(sets.size())), options{world, world, 0, 20000, 0, 1}, group(options, 60000 * kMs),
        hashes(sets.size()) {}

  std::vector<const host::KernelSet*> sets;
  int world;
  Options options;
  Group group;
  std::vector<std::vector<uint64_t>> hashes;  // of each rank's all-reduces

  void run() {
    onRanks(world, [&](int rank) { Rank(*this, rank).everything(); });
    for (const auto& h : hashes) CHECK(h == hashes[0]);
  }

  class Rank {
   public:
    Rank(Ranks& ranks, int rank)
        : ranks_(ranks), rank_(rank), team_(ranks.group.teams[static_cast<size_t>(rank)]), set_(*ranks.sets[static_cast<size_t>(rank)]),
          window_(team_.heap(rank) + kWindow) {}

    void everything() {
      for (const Floating& f : kTypes) {
        for (const Reducing& r : kReductions) {
          for (const Run& run : runs()) {
            // A pull cannot scale: it reads the other ranks' elements as these lie in memory.
            if (run.algorithm != host::kPull || r.kind != Reduction::kPreMulSum) one(f, r, run);
          }
        }
      }
    }

   private:
    static constexpr size_t kRecv = kMaxCount * sizeof(float);  // of recv, from the beginning of the window

    void one(const Floating& f, const Reducing& r, const Run& run) {
      specials_ = f.specials();
      const size_t bytes = host::bytesOf(f.type), world = static_cast<size_t>(ranks_.world);
      size_t whole = 1;  // every combination
      for (size_t i = 0; i < world; i++) whole *= specials_.size();
      const size_t count = run.scatters() ? whole / world : whole;  // whole is divisible: there are 12 specials, or 6
      CHECK(count * world == whole * (run.scatters() ? 1 : world) && whole * bytes <= kRecv);
      for (size_t i = 0; i < whole; i++) memcpy(window_ + i * bytes, &at(i, rank_).bits, bytes);
      memset(window_ + kRecv, 0x5a, count * bytes);
      team_.call = sign({run.collective, 0, 0, kNoRoot, count, 0, number_++, 0});
      call(f, opOf(f, r, rank_), run, count);
      if (run.collective == host::kReduce && rank_ != 0) return;
      const size_t first = run.scatters() ? static_cast<size_t>(rank_) * count : 0;
      for (size_t i = 0; i < count; i++) check(f, r, run, first + i, window_ + kRecv + i * bytes);
      if (!run.scatters() && run.collective != host::kReduce) hash(count * bytes);
    }

    const Special& at(size_t element, int rank) const {
      for (int i = 0; i < rank; i++) element /= specials_.size();
      return specials_[element % specials_.size()];
    }

    void call(const Floating& f, const host::ReduceOp& op, const Run& run, size_t count) {
      RingPlan ring = ringInRankOrder(ranks_.world);
      ring.channels = 2;
      host::KernelCall c = callOf(team_, ring, f.type, window_, window_ + kRecv, count);
      c.reduce = op;
      c.root = 0;
      c.sendOffer = kWindow;
      c.recvOffer = kWindow + kRecv;
      c.reproducible = run.reproducible;
      c.protocol = run.protocol;
      c.elements = &set_.elements[host::indexOf(f.type)];
      const host::Outcome outcome = kernelOf(run.algorithm, run.collective)(c);
      CHECK(outcome.stop == Stop::kNone && !outcome.declined);
    }

    void check(const Floating& f, const Reducing& r, const Run& run, size_t element, const char* result) const {
      std::vector<double> values;
      for (int rank = 0; rank < ranks_.world; rank++) values.push_back(at(element, rank).value);
      uint64_t got = 0;
      memcpy(&got, result, host::bytesOf(f.type));
      const bool want = isNaNOf(f, r, values);
      if (f.isNaN(got) == want && (!want || got == f.nan())) return;
      fprintf(stderr, "rank %d of %d (%s), type %d, reduction %d, algorithm %d: element %zu is %#llx, %s %#llx; inputs", rank_, ranks_.world,
              set_.isa, host::indexOf(f.type), static_cast<int>(r.kind), static_cast<int>(run.algorithm), element,
              static_cast<unsigned long long>(got), want ? "want" : "want no NaN such as", static_cast<unsigned long long>(f.nan()));
      for (int rank = 0; rank < ranks_.world; rank++) {
        fprintf(stderr, " %#llx (%s)", static_cast<unsigned long long>(at(element, rank).bits), ranks_.sets[static_cast<size_t>(rank)]->isa);
      }
      fputs("\n", stderr);
      CHECK(!"a NaN result has other bits");
    }

    void hash(size_t bytes) {
      uint64_t h = bytes;
      for (size_t i = 0; i < bytes; i++) h = (h ^ static_cast<unsigned char>(window_[kRecv + i])) * 0x100000001b3u;
      ranks_.hashes[static_cast<size_t>(rank_)].push_back(h);
    }

    Ranks& ranks_;
    const int rank_;
    FlagTeam& team_;
    const host::KernelSet& set_;
    char* const window_;
    std::vector<Special> specials_;
    uint32_t number_ = 0;
  };
};

// ---- A single rank ----

// Scales canonicalise, copies keep every bit.
void alone(const host::KernelSet& set) {
  for (const Floating& f : kTypes) {
    const std::vector<Special> specials = f.specials();
    const size_t bytes = host::bytesOf(f.type);
    std::vector<char> send(specials.size() * bytes), recv(send.size());
    for (size_t i = 0; i < specials.size(); i++) memcpy(&send[i * bytes], &specials[i].bits, bytes);
    for (const Reducing& r : kReductions) {
      host::reduceAlone(set.elements[host::indexOf(f.type)], opOf(f, r, 0), send.data(), recv.data(), specials.size());
      if (r.kind != Reduction::kPreMulSum) {
        CHECK(send == recv);
        continue;
      }
      for (size_t i = 0; i < specials.size(); i++) {
        uint64_t got = 0;
        memcpy(&got, &recv[i * bytes], bytes);
        const bool want = isNaNOf(f, r, {specials[i].value});
        CHECK(f.isNaN(got) == want && (!want || got == f.nan()));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<const host::KernelSet*> sets;
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const bool named = argc == 1 || std::any_of(argv + 1, argv + argc, [name](const char* a) { return strcmp(a, name) == 0; });
    const host::KernelSet* set = host::kernelsFor(name);
    if (named && set != nullptr) sets.push_back(set);
  }
  CHECK(!sets.empty());
  for (const host::KernelSet* a : sets) {
    for (const host::KernelSet* b : sets) {
      Ranks({a, b}).run();
      for (const host::KernelSet* c : sets) {
        if (sets.size() < 3 || (a != b && b != c && c != a)) Ranks({a, b, c}).run();
      }
    }
  }
  for (const host::KernelSet* set : sets) alone(*set);
  for (const host::KernelSet* set : sets) printf("%s\n", set->isa);
  return 0;
}
