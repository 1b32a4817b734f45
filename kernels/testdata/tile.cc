// The tiles of the CPU target against arithmetic by the definition.
#include "host/tile.h"

#include <math.h>

#include "check.h"

using railhead::host::BF16;
using railhead::host::kTileElements;
using railhead::host::loadTile;
using railhead::host::storeTile;
using railhead::host::Tile;

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
  Tile<BF16> tile;
  memcpy(&tile.f, bits, sizeof bits);
  uint16_t out[kTileElements];
  storeTile<BF16>(out, tile, kTileElements);
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
    const Tile<BF16> tile = loadTile<BF16>(in, kTileElements);
    float wide[kTileElements];
    memcpy(wide, &tile.f, sizeof wide);
    for (size_t i = 0; i < kTileElements; i++) CHECK(toBits(wide[i]) == static_cast<uint32_t>(in[i]) << 16);
  }
}

// Loads and stores of n elements at any address touch n elements; the rest of a loaded tile is 0. The memory is exactly
// as large as it must be, for AddressSanitizer.
template <class T>
void partly() {
  for (size_t shift = 0; shift < 16; shift++) {
    for (size_t n = 0; n <= kTileElements; n++) {
      const size_t bytes = n * sizeof(T);
      char* in = static_cast<char*>(malloc(shift + bytes));
      char* out = static_cast<char*>(malloc(shift + bytes));
      for (size_t i = 0; i < bytes; i++) in[shift + i] = static_cast<char>(i % sizeof(T) == sizeof(T) - 1 ? 0x3f : 0x11 * (i % 7));
      const Tile<T> tile = loadTile<T>(in + shift, n);
      float wide[kTileElements];
      memcpy(wide, &tile.f, sizeof wide);
      for (size_t i = n; i < kTileElements; i++) CHECK(toBits(wide[i]) == 0);
      storeTile<T>(out + shift, tile, n);
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
