#pragma GCC optimize("fp-contract=off")
#include "cpu_bits.h"

#include <string.h>

#include <vector>

#include "host/run_kernels.h"

using namespace railhead;
using namespace railhead::host;

namespace {

struct Portable {
  static constexpr int kVectorBytes = 16;
};

template <class T>
void reduce(int reduction, uint64_t scale, const char* const* sends, int worldSize, int reduceGroup, size_t count, char* out) {
  ReduceOp op = {};
  op.kind = static_cast<Reduction>(reduction);
  memcpy(op.scalar, &scale, sizeof op.scalar);
  const RunKernels kernels = RunKernelsOf<T, Portable>::set();
  RunFold fold = {};
  fold.n = worldSize;
  fold.group = reduceGroup;
  fold.kind = op.kind;
  fold.worldSize = worldSize;
  std::vector<std::vector<char>> scaled(static_cast<size_t>(worldSize));
  for (int r = 0; r < worldSize; r++) {
    fold.from[r] = sends[r];
    if (op.kind != Reduction::kPreMulSum) continue;
    std::vector<char>& own = scaled[static_cast<size_t>(r)];
    own.resize(count * sizeof(T));
    kernels.scale(op, sends[r], own.data(), count);
    fold.from[r] = own.data();
  }
  kernels.fold(fold, false, out, count);
}

constexpr uint32_t kBytes[kCpuTypes] = {4, 2, 8, 2, 1, 1, 1, 1, 4, 8, 8};
bool isFloating(int type) { return type < 6; }
// Bits of 1.0.
constexpr uint64_t kOne[6] = {0x3f800000, 0x3f80, 0x3ff0000000000000, 0x3c00, 0x38, 0x3c};
constexpr uint64_t kInfinity[6] = {0x7f800000, 0x7f80, 0x7ff0000000000000, 0x7c00, 0x7e, 0x7c};

uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

}  // namespace

uint32_t cpuTypeBytes(int type) { return kBytes[type]; }

void cpuAllReduce(int type, int reduction, uint64_t scale, const char* const* sends, int worldSize, int reduceGroup, size_t count, char* out) {
  using Reduce = void (*)(int, uint64_t, const char* const*, int, int, size_t, char*);
  constexpr Reduce kReduce[kCpuTypes] = {reduce<float>,  reduce<BF16>,    reduce<double>,  reduce<F16>,     reduce<E4M3>,    reduce<E5M2>,
                                         reduce<int8_t>, reduce<uint8_t>, reduce<int32_t>, reduce<int64_t>, reduce<uint64_t>};
  kReduce[type](reduction, scale, sends, worldSize, reduceGroup, count, out);
}

uint64_t cpuScale(int type, uint64_t random) {
  if (!isFloating(type)) return 1 + random % 7;
  uint64_t bits = 0;
  if (type == 2) {
    const double scale = static_cast<double>(random % 1000) / 300 - 1;
    memcpy(&bits, &scale, 8);
  } else {
    const float scale = static_cast<float>(random % 1000) / 300 - 1;
    memcpy(&bits, &scale, 4);
  }
  return bits;
}

void fillWithEveryValue(int type, uint64_t seed, char* to, size_t count) {
  const uint32_t bytes = kBytes[type];
  for (size_t i = 0; i < count; i++) {
    const uint64_t random = mix(seed + i * 0x9e3779b97f4a7c15u), again = mix(random);
    const uint64_t sign = uint64_t{1} << (8 * bytes - 1);
    uint64_t bits = again;
    switch (random % 16) {
      case 0: bits = ~uint64_t{0}; break;
      case 1: bits = sign; break;
      case 2: bits = isFloating(type) ? kInfinity[type] | (again % 2 != 0 ? sign : 0) : 0; break;
      case 3: bits = isFloating(type) ? kInfinity[type] + 1 + again % 3 : again % 8; break;
      case 4: bits = again % 4; break;
      case 5:
      case 6: break;
      default: bits = isFloating(type) ? kOne[type] + again % 200 * (sign / 4096 + 1) % (kOne[type] / 4 + 1) + (again & sign) : again;
    }
    // Runs of all ones, so that whole words have them.
    if (mix(seed ^ i / 16) % 8 == 0) bits = ~uint64_t{0};
    memcpy(to + i * bytes, &bits, bytes);
  }
}
