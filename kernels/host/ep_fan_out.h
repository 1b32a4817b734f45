// Copies a received row to the places of several experts.
#ifndef RAILHEAD_KERNELS_HOST_EP_FAN_OUT_H_
#define RAILHEAD_KERNELS_HOST_EP_FAN_OUT_H_

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railhead::host {

// stream() writes past the caches. If all rows together are larger than the caches, an ordinary store first fetches the line that it
// overwrites, which moves twice the bytes. It writes four places at a time, as a processor has few buffers for such stores.
template <class Isa>
struct FanOut {
#if defined(__x86_64__)
  static constexpr uint32_t kLine = 64;

  static inline __attribute__((always_inline)) void streamLine(char* to, const char* from) {
    if constexpr (Isa::kVectorBytes == 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
    } else if constexpr (Isa::kVectorBytes == 32) {
      for (int i = 0; i < 2; i++) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, v);
      }
    } else {
      for (int i = 0; i < 4; i++) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
        _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, v);
      }
    }
  }

  static bool canStream(void* const* to, int n, uint32_t bytes) {
    uintptr_t low = bytes;
    for (int i = 0; i < n; i++) low |= reinterpret_cast<uintptr_t>(to[i]);
    return low % kLine == 0;
  }

  static void stream(const char* row, void* const* to, int n, uint32_t bytes) {
    for (int first = 0; first < n; first += 4) {
      const int behind = n - first < 4 ? n : first + 4;
      for (uint32_t at = 0; at < bytes; at += kLine) {
        for (int i = first; i < behind; i++) streamLine(static_cast<char*>(to[i]) + at, row + at);
      }
    }
    _mm_sfence();  // nothing else orders these stores, not even a later release
  }
#else
  static bool canStream(void* const*, int, uint32_t) { return false; }
  static void stream(const char*, void* const*, int, uint32_t) {}
#endif

  static void copy(const void* row, void* const* to, int n, uint32_t bytes, bool streams) {
    if (streams && canStream(to, n, bytes)) return stream(static_cast<const char*>(row), to, n, bytes);
    for (int i = 0; i < n; i++) memcpy(to[i], row, bytes);
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_FAN_OUT_H_
