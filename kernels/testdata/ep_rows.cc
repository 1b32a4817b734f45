// Compares the rows of MoE dispatch and combine with loops over elements by the definition. VECTOR_BYTES is 16, 32 or 64; the compiler's
// flags say what the processor must have. All instruction sets must give the same bytes.
#pragma GCC optimize("fp-contract=off")  // as in host/isa_*.cc; the definition rounds products too
#include "host/ep_rows.h"

#include <initializer_list>

#include "check.h"
#include "ep_values.h"
#include "formats.h"

using namespace railhead::host;

namespace {

struct Isa {
  static constexpr int kVectorBytes = VECTOR_BYTES;
};
constexpr EpRowKernels kRows = EpRowsOf<Isa>::set();

constexpr Type kAdded[] = {Type::kF32, Type::kBF16, Type::kF16};
constexpr uint32_t kHidden[] = {1, 15, 16, 17, 64, 127, 128, 129, 2880, 3584, 7168};

template <class F>
double value(uint32_t p) {
  if (F::isNaN(p)) return NAN;
  const double m = F::isInfinite(p) ? INFINITY : F::magnitude(p & (F::kSign - 1));
  return (p & F::kSign) != 0 ? -m : m;
}
double valueOf(Type t, uint32_t bits) {
  switch (t) {
    case Type::kF32: return floatOf(bits);
    case Type::kBF16: return value<FormatBF16>(bits);
    case Type::kF16: return value<FormatF16>(bits);
    default: return value<FormatE4M3>(bits);
  }
}
template <class F>
uint32_t rounded(double d) {
  return isnan(d) ? F::kNaN : F::nearest(d);
}
void checkRounded(Type t, double d, uint32_t got) {
  switch (t) {
    case Type::kF32: CHECK(got == (isnan(d) ? 0x7fc00000 : bitsOf(static_cast<float>(d)))); return;
    case Type::kBF16: CHECK(got == rounded<FormatBF16>(d)); return;
    case Type::kF16: CHECK(got == rounded<FormatF16>(d)); return;
    default: CHECK(got == rounded<FormatE4M3>(d)); return;
  }
}

// Switches subnormal numbers off for its lifetime.
struct FlushToZero {
#if defined(__x86_64__)
  const unsigned before = __builtin_ia32_stmxcsr();
  FlushToZero() { __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~FlushToZero() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(before)::"memory");
    asm volatile("msr fpcr, %0" ::"r"(before | 1u << 24) : "memory");
  }
  ~FlushToZero() { asm volatile("msr fpcr, %0" ::"r"(before) : "memory"); }
#endif
};

// Checks a block's scale, and each element with that scale.
void checkBlock(const EpRowFormat& f, const Row& x, uint32_t first, uint32_t count, const unsigned char* wire) {
  float amax = 1e-4f;
  for (uint32_t i = 0; i < count; i++) amax = fmaxf(amax, fabsf(static_cast<float>(valueOf(f.in, x.bits(first + i)))));
  const unsigned char* scales = wire + epScaleOffset(f);
  double scale = static_cast<double>(f.staticScale), slack = ldexp(1, -20);
  if (f.scale == EpScale::kF32) {
    float s;
    memcpy(&s, scales + first / kEpScaleBlock * 4, 4);
    CHECK(s == amax / 448.0f);
    scale = static_cast<double>(s);
    slack = 3 * ldexp(1, -20);  // x * (448 / amax) and the scale: three roundings
  } else if (f.scale == EpScale::kUE8M0) {
    const int e = scales[first / kEpScaleBlock] - 127;
    scale = ldexp(1, e);
    CHECK(448 * scale >= static_cast<double>(amax) && 448 * scale < 2 * static_cast<double>(amax));
    slack = 0;
  }
  for (uint32_t i = 0; i < count; i++) {
    const double v = valueOf(f.in, x.bits(first + i));
    const float narrow = static_cast<float>(v);
    const double scaled = f.scale == EpScale::kF32      ? static_cast<double>(narrow * (448.0f / amax))
                          : f.scale == EpScale::kUE8M0 ? v / scale
                                                       : static_cast<double>(narrow / f.staticScale);
    checkRounded(Type::kE4M3, scaled, wire[first + i]);
    if (f.scale != EpScale::kStatic) CHECK(fabs(v) / scale <= 448 * (1 + ldexp(1, -20)));
    if (fabs(v) / scale > 448) continue;
    const double error = fabs(v - value<FormatE4M3>(wire[first + i]) * scale);
    CHECK(error <= fmax(ldexp(fabs(v), -4), ldexp(scale, -10)) * (1 + slack));
  }
}

void checkEncoded(const EpRowFormat& f, const Row& x, const Row& scales, const unsigned char* wire) {
  const uint32_t elements = f.hidden * bytesOf(f.wire);
  for (uint32_t i = elements; i < epScaleOffset(f); i++) CHECK(wire[i] == 0);
  if (f.in == f.wire) {
    CHECK(memcmp(wire, x.p(), elements) == 0);
    CHECK(epScaleBytes(f) == 0 || memcmp(wire + epScaleOffset(f), scales.p(), epScaleBytes(f)) == 0);
  } else if (f.wire != Type::kE4M3) {
    for (uint32_t i = 0; i < f.hidden; i++) checkRounded(f.wire, valueOf(f.in, x.bits(i)), elementBits(wire, f.wire, i));
  } else {
    const uint32_t block = f.scale == EpScale::kStatic ? f.hidden : kEpScaleBlock;
    for (uint32_t first = 0; first < f.hidden; first += block) {
      checkBlock(f, x, first, f.hidden - first < block ? f.hidden - first : block, wire);
    }
  }
}

void encodeOne(EpRowFormat f, Values& values) {
  const bool finite = f.wire == Type::kE4M3 && f.in != Type::kE4M3;
  CHECK(epRowBytes(f) == epScaleOffset(f) + epScaleBytes(f));
  CHECK(epScaleBytes(f) == 0 || epScaleOffset(f) % 4 == 0);
  for (const Style style : {Style::kAny, Style::kModest, Style::kTiny, Style::kZero}) {
    const Row x = values.row(f.in, f.hidden, style, finite);
    const Row scales = values.row(Type::kU8, epScaleBytes(f), Style::kAny, false);
    if (finite) CHECK(kRows.isFinite(f, x.p(), nullptr));
    Guarded wire(epRowBytes(f), 0), flushed(epRowBytes(f), 0);
    kRows.encode(f, x.p(), scales.p(), wire.p());
    checkEncoded(f, x, scales, wire.p());
    {
      FlushToZero off;
      kRows.encode(f, x.p(), scales.p(), flushed.p());
    }
    CHECK(memcmp(wire.p(), flushed.p(), epRowBytes(f)) == 0);
  }
}

void encodeAll(Values& values) {
  for (uint32_t hidden : kHidden) {
    for (Type in : kAdded) {
      for (Type wire : kAdded) encodeOne({in, wire, Type::kBF16, EpScale::kF32, 0, hidden}, values);
    }
    for (Type in : {Type::kF32, Type::kBF16, Type::kF16, Type::kE4M3}) {
      encodeOne({in, Type::kE4M3, Type::kBF16, EpScale::kF32, 0, hidden}, values);
      encodeOne({in, Type::kE4M3, Type::kBF16, EpScale::kUE8M0, 0, hidden}, values);
      for (float s : {1.0f, 0.37f, 9.5367431640625e-07f}) {
        encodeOne({in, Type::kE4M3, Type::kBF16, EpScale::kStatic, s, hidden}, values);
      }
    }
  }
}

// Encodes a row of given elements.
void encodeThese(EpRowFormat f, const float* x, Values& values) {
  Row row = values.row(Type::kF32, f.hidden, Style::kZero, true);
  for (uint32_t i = 0; i < f.hidden; i++) row.set(i, bitsOf(x[i]));
  Guarded wire(epRowBytes(f), 0);
  kRows.encode(f, row.p(), nullptr, wire.p());
  checkEncoded(f, row, row, wire.p());
}

// Largest magnitudes at which the power of two changes, and the numbers next to them; quotients at and next to every tie.
void encodeHardValues(Values& values) {
  EpRowFormat f{Type::kF32, Type::kE4M3, Type::kBF16, EpScale::kUE8M0, 0, 1};
  for (int exponent = -20; exponent < 128; exponent++) {
    for (float mantissa : {1.0f, 1.75f}) {
      const float x = ldexpf(mantissa, exponent);
      for (float near : {x, nextafterf(x, 0), nextafterf(x, INFINITY)}) encodeThese(f, &near, values);
    }
  }
  f.hidden = FormatE4M3::kLargest * 3;
  for (float s : {1.0f, 0.37f, 3.3f, 0.0123f}) {
    f.staticScale = s;
    float x[FormatE4M3::kLargest * 3];
    for (uint32_t p = 0; p < FormatE4M3::kLargest; p++) {
      const double tie = (FormatE4M3::magnitude(p) + FormatE4M3::magnitude(p + 1)) / 2;
      x[3 * p] = static_cast<float>(tie * static_cast<double>(s));
      x[3 * p + 1] = nextafterf(x[3 * p], 0);
      x[3 * p + 2] = nextafterf(x[3 * p], INFINITY);
    }
    for (uint32_t i = 0; i < f.hidden; i += kEpScaleBlock) x[i] = 448 * s;
    for (EpScale scale : {EpScale::kStatic, EpScale::kF32}) {
      f.scale = scale;
      encodeThese(f, x, values);
    }
  }
}

// Sum of products from left to right.
float sumOf(Type t, const Row* rows, const float* weights, int n, uint32_t i) {
  float sum = 0;
  for (int r = 0; r < n; r++) {
    float term = static_cast<float>(valueOf(t, rows[r].bits(i)));
    if (weights != nullptr) term *= weights[r];
    sum = r == 0 ? term : sum + term;
  }
  return sum;
}

struct Rows {
  Row rows[64];
  const void* pointers[64];
  float weights[64];

  Rows(Values& values, Type t, uint32_t hidden, int n) {
    for (int r = 0; r < n; r++) {
      rows[r] = values.row(t, hidden, values.below(2) != 0 ? Style::kAny : Style::kModest, false);
      pointers[r] = rows[r].p();
      weights[r] = values.below(8) == 0 ? -0.0f : floatOf(0x3c000000u + values.below(0x3000000));
    }
  }
};

void partialOne(Type y, Type combine, uint32_t hidden, int n, bool weighted, Values& values) {
  const EpRowFormat f{Type::kBF16, Type::kBF16, combine, EpScale::kF32, 0, hidden};
  const Rows in(values, y, hidden, n);
  const float* weights = weighted ? in.weights : nullptr;
  Guarded wire(epCombineRowBytes(f), values.below(64));
  kRows.partial(f, y, in.pointers, weights, n, wire.p());
  for (uint32_t i = 0; i < hidden; i++) {
    checkRounded(combine, static_cast<double>(sumOf(y, in.rows, weights, n, i)), elementBits(wire.p(), combine, i));
  }
}

enum class Add { kNone, kOther, kInPlace };

void finishOne(Type combine, Type out, uint32_t hidden, int n, bool scaled, Add add, Values& values) {
  const EpRowFormat f{Type::kBF16, Type::kBF16, combine, EpScale::kF32, 0, hidden};
  const Rows in(values, combine, hidden, n);
  const Row added = values.row(out, hidden, Style::kModest, false);
  const float factor = n % 2 == 0 ? -0.0f : 1.7f;
  Guarded result(hidden * bytesOf(out), values.below(64));
  if (add == Add::kInPlace) memcpy(result.p(), added.p(), hidden * bytesOf(out));
  const void* from = add == Add::kNone ? nullptr : add == Add::kOther ? added.p() : result.p();
  kRows.finish(f, in.pointers, n, scaled, factor, from, out, result.p());
  for (uint32_t i = 0; i < hidden; i++) {
    float sum = sumOf(combine, in.rows, nullptr, n, i);
    if (scaled) sum *= factor;
    if (add != Add::kNone) sum += static_cast<float>(valueOf(out, added.bits(i)));
    checkRounded(out, static_cast<double>(sum), elementBits(result.p(), out, i));
  }
}

void sumAll(Values& values) {
  for (uint32_t hidden : kHidden) {
    for (Type a : kAdded) {
      for (Type b : kAdded) {
        for (int n : {0, 1, 2, 5}) {
          for (int choice = 0; choice < 6; choice++) {
            // Of long rows, only some of the choices.
            if (hidden > 1000 && values.below(12) != 0) continue;
            if (n > 0) partialOne(a, b, hidden, n, choice % 2 == 0, values);
            finishOne(a, b, hidden, n, choice % 2 == 0, static_cast<Add>(choice / 2), values);
          }
        }
        if (hidden == 17 || hidden == 129) partialOne(a, b, hidden, 64, true, values);
      }
    }
  }
}

// Sets one element to a bit pattern.
void checkFound(const EpRowFormat& f, Row& row, const void* x, const void* scales, uint32_t at, uint32_t bits, bool finite) {
  const uint32_t before = row.bits(at);
  row.set(at, bits);
  CHECK(kRows.isFinite(f, x, scales) == finite);
  row.set(at, before);
}

void findNonFinite(Values& values) {
  struct Case {
    Type t;
    uint32_t infinity, nan, largest;
  };
  const Case cases[] = {{Type::kF32, 0x7f800000, 0xff800001, 0x7f7fffff},
                        {Type::kBF16, 0xff80, 0x7f81, 0x7f7f},
                        {Type::kF16, 0x7c00, 0xfc01, 0x7bff},
                        {Type::kE4M3, 0x7f, 0xff, 0xfe}};
  for (const Case& c : cases) {
    for (uint32_t hidden : kHidden) {
      EpRowFormat f{c.t, Type::kE4M3, Type::kBF16, EpScale::kF32, 1, hidden};
      const uint32_t columns = epScaleColumns(f);
      Row x = values.row(c.t, hidden, Style::kAny, true), scales = values.row(Type::kF32, columns, Style::kAny, true);
      for (uint32_t at = 0; at < hidden; at += hidden > 1000 ? 37 : 1) {
        checkFound(f, x, x.p(), scales.p(), at, c.infinity, false);
        checkFound(f, x, x.p(), scales.p(), at, c.nan, false);
        checkFound(f, x, x.p(), scales.p(), at, c.largest, true);
      }
      if (c.t != Type::kE4M3) continue;
      for (uint32_t at = 0; at < columns; at++) {
        checkFound(f, scales, x.p(), scales.p(), at, 0xff800000, false);
        checkFound(f, scales, x.p(), scales.p(), at, 0x7f7fffff, true);
      }
      f.scale = EpScale::kUE8M0;
      Row bytes = values.row(Type::kU8, columns, Style::kZero, true);
      for (uint32_t at = 0; at < columns; at++) {
        checkFound(f, bytes, x.p(), bytes.p(), at, 255, false);
        checkFound(f, bytes, x.p(), bytes.p(), at, 254, true);
      }
      f.scale = EpScale::kStatic;
      CHECK(kRows.isFinite(f, x.p(), nullptr));
    }
  }
}

// Copies a row to several places, past the caches if addresses and sizes allow it.
void fanOutAll(Values& values) {
  for (uint32_t bytes : {1u, 63u, 64u, 128u, 4160u, 14336u}) {
    for (int n : {0, 1, 3, 4, 5, 9}) {
      for (size_t shift : {size_t{0}, size_t{8}}) {
        for (bool streams : {false, true}) {
          const Row row = values.row(Type::kU8, bytes, Style::kAny, true);
          const uint32_t stride = (bytes + 127) / 64 * 64;  // at least one byte between two rows
          Guarded out(static_cast<size_t>(n) * stride, shift);
          memset(out.p(), 0x5a, static_cast<size_t>(n) * stride);
          void* places[9];
          for (int i = 0; i < n; i++) places[i] = out.p() + static_cast<size_t>(n - 1 - i) * stride;
          kRows.fanOut(row.p(), places, n, bytes, streams);
          for (int i = 0; i < n; i++) {
            const auto* place = static_cast<const unsigned char*>(places[i]);
            CHECK(memcmp(place, row.p(), bytes) == 0);
            for (uint32_t at = bytes; at < stride; at++) CHECK(place[at] == 0x5a);
          }
        }
      }
    }
  }
}

}  // namespace

int main() {
  Values values(7);
  fanOutAll(values);
  encodeAll(values);
  encodeHardValues(values);
  sumAll(values);
  findNonFinite(values);
  return 0;
}
