// Compares folds of runs with loops over elements: sums and averages by groups, in whole blocks and the rest, at any address. VECTOR_BYTES is as
// in tile.cc.
#include "host/run_kernels.h"

#include <random>

#include "check.h"
#include "formats.h"

namespace host = railhead::host;

struct Isa {
  static constexpr int kVectorBytes = VECTOR_BYTES;
};

namespace {

struct FormatF32 {
  using Type = float;
};

template <class F>
struct Element {
  using Bits = decltype(F::Type::bits);
  static float value(const char* p) {
    Bits b;
    memcpy(&b, p, sizeof b);
    if (F::isNaN(b)) return NAN;
    const auto magnitude = static_cast<float>(F::isInfinite(b) ? static_cast<double>(INFINITY) : F::magnitude(b & (F::kSign - 1)));
    return (b & F::kSign) != 0 ? -magnitude : magnitude;
  }
  static uint32_t rounded(float f) { return isnan(f) ? F::kNaN : F::nearest(static_cast<double>(f)); }
  static uint32_t stored(const char* p) {
    Bits b;
    memcpy(&b, p, sizeof b);
    return b;
  }
};
template <>
struct Element<FormatF32> {
  static float value(const char* p) {
    float f;
    memcpy(&f, p, sizeof f);
    return f;
  }
  static uint32_t rounded(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return isnan(f) ? 0x7fc00000u : bits;
  }
  static uint32_t stored(const char* p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
  }
};

// The sum of element i of n runs: of each group from its first rank on, then of the groups.
template <class F>
float sumOf(const host::RunFold& f, size_t i) {
  const auto at = [&](int r) { return Element<F>::value(f.from[r] + i * sizeof(typename F::Type)); };
  volatile float total = 0;  // rounded after each addition
  for (int begin = 0; begin < f.n; begin += f.group) {
    volatile float group = at(begin);
    for (int r = begin + 1; r < f.n && r < begin + f.group; r++) group = group + at(r);
    total = begin == 0 ? group : total + group;
  }
  return f.kind == host::Reduction::kAvg ? total / static_cast<float>(f.worldSize) : total;
}

template <class F>
void checkFold(const host::RunFold& f, size_t count, size_t shift) {
  constexpr size_t kBytes = sizeof(typename F::Type);
  char* to = static_cast<char*>(malloc(shift + count * kBytes));
  host::RunKernelsOf<typename F::Type, Isa>::set().fold(f, false, to + shift, count);
  for (size_t i = 0; i < count; i++) {
    const float sum = sumOf<F>(f, i);
    const uint32_t got = Element<F>::stored(to + shift + i * kBytes), want = Element<F>::rounded(sum);
    if (got != want) {
      fprintf(stderr, "%zu-byte elements, %d runs in groups of %d, element %zu of %zu: sum %a is %#x, expected %#x\n", kBytes, f.n, f.group, i,
              count, static_cast<double>(sum), got, want);
    }
    CHECK(got == want);
  }
  free(to);
}

// Any bits in small and large runs.
template <class F>
void anyRuns(std::mt19937& random) {
  constexpr size_t kMost = 9 * host::kTileElements, kBytes = sizeof(typename F::Type);
  char memory[9][kMost * kBytes + 16];
  for (int round = 0; round < 60; round++) {
    const size_t shift = random() % 16, count = 1 + random() % kMost;
    host::RunFold f = {};
    f.n = f.worldSize = round % 2 == 0 ? 2 : 1 + static_cast<int>(random() % 9);
    f.group = 1 + static_cast<int>(random() % static_cast<unsigned>(f.n));
    f.kind = round % 3 == 0 ? host::Reduction::kAvg : host::Reduction::kSum;
    const bool alike = random() % 2 == 0;  // exponents close together
    for (int r = 0; r < f.n; r++) {
      for (char& c : memory[r]) c = static_cast<char>(random());
      f.from[r] = memory[r] + shift;
      for (size_t i = kBytes - 1; alike && i < count * kBytes; i += kBytes) memory[r][shift + i] = static_cast<char>((memory[r][shift + i] & 0x83) | 0x38);
    }
    checkFold<F>(f, count, shift);
  }
}

// All pairs of a type of 8 bits.
template <class F>
void allPairs() {
  char a[256], b[256];
  for (unsigned i = 0; i < 256; i++) a[i] = static_cast<char>(i);
  for (int second = 0; second < 256; second++) {
    memset(b, second, sizeof b);
    host::RunFold f = {{a, b}, 0, 2, 1 + second % 2, host::Reduction::kSum, 2};
    checkFold<F>(f, 256, 0);
  }
}

}  // namespace

int main() {
  std::mt19937 random(1);
  anyRuns<FormatF32>(random);
  anyRuns<FormatBF16>(random);
  anyRuns<FormatF16>(random);
  anyRuns<FormatE4M3>(random);
  anyRuns<FormatE5M2>(random);
  allPairs<FormatE4M3>();
  allPairs<FormatE5M2>();
  return 0;
}
