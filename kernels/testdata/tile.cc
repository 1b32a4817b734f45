// Compares the tiles of the CPU target with arithmetic by the definition. VECTOR_BYTES is 16, 32 or 64; the compiler's flags say what the
// processor must have.
#include "host/run_kernels.h"

#include <initializer_list>

#include "check.h"
#include "formats.h"

namespace host = railhead::host;
using host::BF16;
using host::kTileElements;

struct Isa {
  static constexpr int kVectorBytes = VECTOR_BYTES;
};
template <class T>
using Convert = host::Convert<T, Isa>;

namespace {

float fromBits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

template <class T>
uint32_t patternOf(const T& t) {
  return t.bits;
}

// Rounds 16 values at a time and compares each lane.
template <class F>
struct Rounder {
  float values[kTileElements];
  size_t n = 0;

  void add(float f) {
    values[n++] = f;
    if (n < kTileElements) return;
    n = 0;
    typename Convert<typename F::Type>::Sum sum;
    memcpy(&sum, values, sizeof sum);
    const auto raw = Convert<typename F::Type>::narrow(sum);
    for (size_t i = 0; i < kTileElements; i++) check(values[i], patternOf(raw.e[i]));
  }
  void check(float f, uint32_t got) {
    const uint32_t want = isnan(f) ? F::kNaN : F::nearest(f);
    if (got != want) fprintf(stderr, "%a rounds to %#x, expected %#x\n", static_cast<double>(f), got, want);
    CHECK(got == want);
  }
  void finish() {
    while (n != 0) add(0);
  }
};

// Every value, every tie between two values, and the f32 numbers next to them. Also f32 numbers with every upper half, and lower halves
// at, next to and far from bf16's tie.
template <class F>
void roundEverything() {
  Rounder<F> rounder;
  const auto around = [&](double exact) {
    const auto f = static_cast<float>(exact);
    for (float g : {f, nextafterf(f, 0), nextafterf(f, INFINITY)}) {
      rounder.add(g);
      rounder.add(-g);
    }
  };
  for (uint32_t p = 0; p <= F::kLargest; p++) {
    around(F::magnitude(p));
    around((F::magnitude(p) + F::magnitude(p + 1)) / 2);
  }
  static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xcdef};
  for (uint32_t upper = 0; upper < 0x10000; upper++) {
    for (uint32_t l : lower) rounder.add(fromBits(upper << 16 | l));
  }
  rounder.finish();
}

// Every pattern widens to its value, in every lane.
template <class F>
void widenEverything() {
  const uint32_t patterns = 2 * F::kSign;
  for (uint32_t first = 0; first < patterns; first++) {
    host::RawTile<typename F::Type> raw;
    for (size_t i = 0; i < kTileElements; i++) raw.e[i].bits = static_cast<decltype(raw.e[i].bits)>((first + i) % patterns);
    const auto sum = Convert<typename F::Type>::widen(raw);
    float wide[kTileElements];
    memcpy(wide, &sum, sizeof wide);
    for (size_t i = 0; i < kTileElements; i++) {
      const uint32_t p = patternOf(raw.e[i]);
      CHECK((signbit(wide[i]) != 0) == ((p & F::kSign) != 0));
      CHECK((isnan(wide[i]) != 0) == F::isNaN(p));
      CHECK((isinf(wide[i]) != 0) == F::isInfinite(p));
      if (isfinite(wide[i])) CHECK(fabs(static_cast<double>(wide[i])) == F::magnitude(p & (F::kSign - 1)));
    }
  }
}

// Loads, folds and stores of n elements at any address access only n elements, and the rest of a loaded tile is 0. The memory ends after n
// elements, for AddressSanitizer.
template <class T>
void partly() {
  for (size_t shift = 0; shift < 16; shift++) {
    for (size_t n = 1; n <= 2 * kTileElements; n++) {
      const size_t bytes = n * sizeof(T);
      char* in = static_cast<char*>(malloc(shift + bytes));
      char* out = static_cast<char*>(malloc(shift + bytes));
      for (size_t i = 0; i < bytes; i++) in[shift + i] = static_cast<char>(i % sizeof(T) == sizeof(T) - 1 ? 0x3f : 0x11 * (i % 7));
      if (n <= kTileElements) {
        const auto raw = host::loadTileOf<host::RawTile<T>, Isa>(in + shift, 0, n);
        static const char zeros[kTileElements * sizeof(T)] = {};
        CHECK(memcmp(reinterpret_cast<const char*>(&raw) + bytes, zeros, sizeof raw - bytes) == 0);
        host::storeTileOf<Isa>(out + shift, 0, n, Convert<T>::narrow(Convert<T>::widen(raw)));
        CHECK(memcmp(in + shift, out + shift, bytes) == 0);
        memset(out + shift, 0, bytes);
      }
      // To elements, and over accumulators.
      const host::RunKernels kernels = host::RunKernelsOf<T, Isa>::set();
      host::RunFold fold = {{in + shift}, 0, 1, 1, host::Reduction::kSum, 1};
      kernels.fold(fold, false, out + shift, n);
      CHECK(memcmp(in + shift, out + shift, bytes) == 0);
      memset(out + shift, 0, bytes);
      char* sums = static_cast<char*>(malloc(shift + n * kernels.sumBytes));
      kernels.fold(fold, true, sums + shift, n);
      fold.from[0] = sums + shift;
      fold.sums = 1;
      kernels.fold(fold, false, out + shift, n);
      CHECK(memcmp(in + shift, out + shift, bytes) == 0);
      free(sums);
      free(in);
      free(out);
    }
  }
}

}  // namespace

template <class F>
void everything() {
  roundEverything<F>();
  widenEverything<F>();
  partly<typename F::Type>();
}

int main() {
  everything<FormatBF16>();
  everything<FormatF16>();
  everything<FormatE4M3>();
  everything<FormatE5M2>();
  partly<float>();
  partly<double>();
  partly<int8_t>();
  partly<int32_t>();
  partly<uint64_t>();
  return 0;
}
