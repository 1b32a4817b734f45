// The tiles of the CPU target against arithmetic by the definition. VECTOR_BYTES is 16, 32 or 64; the compiler's flags say
// what the machine must have.
#include "host/elements.h"

#include <math.h>

#include "check.h"

namespace host = railhead::host;
using host::BF16;
using host::kTileElements;

struct Isa {
  static constexpr int kVectorBytes = VECTOR_BYTES;
};
template <class T>
using Elements = host::Elements<T, Isa>;

namespace {

float fromBits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

uint32_t toBits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

// The magnitude that a bf16 pattern stands for; infinity counts as the 2^128 that would come next.
double magnitude(uint32_t pattern) {
  return (pattern & 0x7fff) == 0x7f80 ? ldexp(1, 128) : fabs(static_cast<double>(fromBits(pattern << 16)));
}

// The nearer of the two neighbours, of two as near the even one: all in exact double arithmetic.
uint16_t nearest(uint32_t bits) {
  const float f = fromBits(bits);
  const uint32_t down = bits >> 16;
  if (isnan(f)) return static_cast<uint16_t>(down | 0x40);
  if (isinf(f)) return static_cast<uint16_t>(down);
  const double exact = fabs(static_cast<double>(f));
  const double below = exact - magnitude(down), above = magnitude(down + 1) - exact;
  return static_cast<uint16_t>(above < below || (above == below && (down & 1) != 0) ? down + 1 : down);
}

// Rounds 16 values at a time and compares each lane.
void round(const uint32_t (&bits)[kTileElements]) {
  host::Sum16<Isa> sum;
  memcpy(&sum, bits, sizeof bits);
  uint16_t out[kTileElements];
  Elements<BF16>::store(reinterpret_cast<char*>(out), 0, kTileElements, Elements<BF16>::narrow(sum));
  for (size_t i = 0; i < kTileElements; i++) {
    if (out[i] != nearest(bits[i])) fprintf(stderr, "%#x rounds to %#x, expected %#x\n", bits[i], out[i], nearest(bits[i]));
    CHECK(out[i] == nearest(bits[i]));
  }
}

// Every bf16 pattern with lower halves at, around and far from the tie.
void roundEverything() {
  static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xcdef};
  uint32_t bits[kTileElements];
  size_t n = 0;
  for (uint32_t upper = 0; upper < 0x10000; upper++) {
    for (uint32_t l : lower) {
      bits[n++] = upper << 16 | l;
      if (n == kTileElements) round(bits);
      n %= kTileElements;
    }
  }
}

// Every bf16 value widens to itself, in every lane.
void widenEverything() {
  for (uint32_t first = 0; first < 0x10000; first++) {
    uint16_t in[kTileElements];
    for (size_t i = 0; i < kTileElements; i++) in[i] = static_cast<uint16_t>(first + i);
    const auto sum = Elements<BF16>::widen(Elements<BF16>::load(reinterpret_cast<char*>(in), 0, kTileElements));
    float wide[kTileElements];
    memcpy(wide, &sum, sizeof wide);
    for (size_t i = 0; i < kTileElements; i++) CHECK(toBits(wide[i]) == static_cast<uint32_t>(in[i]) << 16);
  }
}

// Loads and stores of n elements at any address touch n elements; the rest of a loaded tile is 0. The memory is exactly
// as large as it must be, for AddressSanitizer.
template <class T>
void partly() {
  for (size_t shift = 0; shift < 16; shift++) {
    for (size_t n = 1; n <= kTileElements; n++) {
      const size_t bytes = n * sizeof(T);
      char* in = static_cast<char*>(malloc(shift + bytes));
      char* out = static_cast<char*>(malloc(shift + bytes));
      for (size_t i = 0; i < bytes; i++) in[shift + i] = static_cast<char>(i % sizeof(T) == sizeof(T) - 1 ? 0x3f : 0x11 * (i % 7));
      const auto raw = Elements<T>::load(in + shift, 0, n);
      const auto sum = Elements<T>::widen(raw);
      float wide[kTileElements];
      memcpy(wide, &sum, sizeof wide);
      for (size_t i = n; i < kTileElements; i++) CHECK(toBits(wide[i]) == 0);
      Elements<T>::store(out + shift, 0, n, Elements<T>::narrow(sum));
      CHECK(memcmp(in + shift, out + shift, bytes) == 0);
      free(in);
      free(out);
    }
  }
}

}  // namespace

int main() {
  roundEverything();
  widenEverything();
  partly<float>();
  partly<BF16>();
  return 0;
}
