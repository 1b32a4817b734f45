// Rows for tests of MoE dispatch and combine: memory that ends where the row ends, and values that are hard to round.
#ifndef RAILHEAD_KERNELS_TESTDATA_EP_VALUES_H_
#define RAILHEAD_KERNELS_TESTDATA_EP_VALUES_H_

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "host/types.h"

static inline uint32_t bitsOf(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}
static inline float floatOf(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
static inline uint32_t elementBits(const unsigned char* row, railhead::host::Type t, uint32_t i) {
  const uint32_t bytes = bytesOf(t);
  uint32_t bits = 0;
  memcpy(&bits, row + i * bytes, bytes);
  return bits;
}

// An output between guard bytes, `shift` bytes after a multiple of 64.
class Guarded {
 public:
  Guarded(size_t bytes, size_t shift) : bytes_(bytes), before_(64 + shift) {
    all_ = static_cast<unsigned char*>(aligned_alloc(64, (before_ + bytes + 64 + 63) / 64 * 64));
    memset(all_, 0xa5, before_ + bytes + 64);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    for (size_t i = 0; i < before_; i++) CHECK(all_[i] == 0xa5);
    for (size_t i = 0; i < 64; i++) CHECK(all_[before_ + bytes_ + i] == 0xa5);
    free(all_);
  }
  unsigned char* p() const { return all_ + before_; }

 private:
  size_t bytes_, before_;
  unsigned char* all_;
};

// Elements of a type, at any address. If `ends`, the memory after the last one cannot be accessed.
class Row {
 public:
  Row() = default;
  Row(railhead::host::Type t, uint32_t count, size_t shift, bool ends) : type_(t) {
    constexpr size_t kPage = 65536;  // the page size, or a multiple
    const size_t bytes = count * bytesOf(t), pages = (shift + bytes + kPage - 1) / kPage * kPage;
    mapped_ = pages + kPage;
    void* all = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    all_ = static_cast<unsigned char*>(all);
    CHECK(mprotect(all_ + pages, kPage, PROT_NONE) == 0);
    shift_ = ends ? pages - bytes : shift;
  }
  Row(Row&& other) { *this = static_cast<Row&&>(other); }
  Row& operator=(Row&& other) {
    this->~Row();
    type_ = other.type_;
    shift_ = other.shift_;
    mapped_ = other.mapped_;
    all_ = other.all_;
    other.all_ = nullptr;
    return *this;
  }
  ~Row() {
    if (all_ != nullptr) munmap(all_, mapped_);
  }
  const unsigned char* p() const { return all_ + shift_; }
  uint32_t bits(uint32_t i) const { return elementBits(p(), type_, i); }
  void set(uint32_t i, uint32_t bits) {
    const uint32_t bytes = bytesOf(type_);
    memcpy(all_ + shift_ + i * bytes, &bits, bytes);
  }

 private:
  railhead::host::Type type_ = railhead::host::Type::kU8;
  size_t shift_ = 0, mapped_ = 0;
  unsigned char* all_ = nullptr;
};

// kAny: random bits, zeros of both signs, subnormal numbers, ties. kModest: the same without large exponents. kTiny: subnormal numbers
// and zeros only. kZero: zeros.
enum class Style { kAny, kModest, kTiny, kZero };

class Values {
 public:
  explicit Values(uint64_t seed) : state_(seed) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((static_cast<uint64_t>(next()) * n) >> 32); }

  Row row(railhead::host::Type t, uint32_t count, Style style, bool finite) {
    Row r(t, count, below(64), below(2) != 0);
    for (uint32_t i = 0; i < count; i++) r.set(i, element(t, style, finite));
    return r;
  }

 private:
  struct Shape {
    uint32_t exponent, mantissa;  // bits
  };
  static Shape shapeOf(railhead::host::Type t) {
    switch (t) {
      case railhead::host::Type::kF32: return {8, 23};
      case railhead::host::Type::kBF16: return {8, 7};
      case railhead::host::Type::kF16: return {5, 10};
      default: return {4, 3};
    }
  }
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }

  uint32_t element(railhead::host::Type t, Style style, bool finite) {
    if (style == Style::kZero) return 0;
    const Shape s = shapeOf(t);
    const uint32_t sign = below(2) << (s.exponent + s.mantissa), mantissa = next() >> (32 - s.mantissa);
    const uint32_t largest = (1u << s.exponent) - 1, bias = largest / 2;
    if (style == Style::kTiny || below(16) == 0) return sign | (below(4) == 0 ? 0 : mantissa);
    if (t == railhead::host::Type::kU8) return next() >> 24;
    uint32_t exponent = style == Style::kModest ? bias - 4 + below(8) : below(largest + 1);
    if (finite && exponent == largest) exponent--;
    return sign | exponent << s.mantissa | (below(4) == 0 ? tie(mantissa, s.mantissa) : mantissa);
  }
  // Makes the mantissa end in a one and zeros. The one is just below the last place of bf16, f16 or kE4M3.
  uint32_t tie(uint32_t mantissa, uint32_t bits) {
    const uint32_t places[] = {4, 8, 11};
    const uint32_t keep = places[below(3)];
    if (keep >= bits) return mantissa;
    const uint32_t one = 1u << (bits - keep);
    return (mantissa & ~(2 * one - 1)) | one;
  }

  uint64_t state_;
};

#endif  // RAILHEAD_KERNELS_TESTDATA_EP_VALUES_H_
