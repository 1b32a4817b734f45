// Makes rows in wire format of x, and finds tokens that are unfit for FP8: a kernel before the dispatch, whose places depend on the tokens that take
// part. A block makes one row at a time.
#ifndef RAILHEAD_KERNELS_GPU_EP_ENCODE_H_
#define RAILHEAD_KERNELS_GPU_EP_ENCODE_H_

#include "railhead/gpu/ep_control.h"
#include "railhead/gpu/ep_elements.h"

namespace railhead::gpu {

// In: the type of x.
template <class In, class C>
class EpEncodeKernel {
 public:
  RH_FN EpEncodeKernel(C& c, const EpEncodeCall& call) : c_(c), call_(call), f_(call.format), shared_(c.epShared()) {}

  RH_FN void run() { epRun(c_, call_, *this); }

  // Of epRun().
  RH_FN void prepare() {}
  RH_FN void look() {}
  RH_FN void repair() {}
  RH_FN bool settles(uint64_t) const { return false; }
  RH_FN void last(uint32_t, uint64_t) {}
  RH_FN bool data() {
    // The flight that the dispatch will take. If none is free, the dispatch is refused.
    const EpFlights<C> flights(c_, call_);
    uint32_t flight;
    if (flights.take(&flight) != EpError::kNone) return true;
    const EpFlightArrays& arrays = call_.flights[flight];
    const uint32_t tokens = call_.tokens < call_.team.maxTokens ? call_.tokens : call_.team.maxTokens;
    RH_ROLLED
    for (uint32_t t = c_.block(); t < tokens; t += c_.dataBlocks()) {
      encode(call_.x + t * uint64_t{f_.hidden} * kSize, call_.scales == nullptr ? nullptr : call_.scales + t * uint64_t{f_.scaleBytes()},
             arrays.encoded + t * call_.team.layout.rowStride, arrays.unfit == nullptr ? nullptr : arrays.unfit + t);
    }
    return true;
  }

 private:
  static constexpr uint32_t kSize = sizeof(typename In::Bits), kElements = 8;  // at a time

  RH_FN void encode(const char* x, const char* scales, char* row, uint32_t* unfit) {
    const bool isFP8 = f_.wire == EpType::kE4M3;
    if (isFP8) look(x, scales, unfit);
    if (f_.in == f_.wire) {
      copy(x, scales, row);
    } else if (isFP8) {
      quantise(x, row);
    } else {
      withEpType(f_.wire, [&](auto wire) { convert<decltype(wire)>(x, row); });
    }
    c_.dataAll(true);  // shared memory is used again
  }

  // The first element, or the scale, that is not finite. The largest magnitude of each block.
  RH_FN void look(const char* x, const char* scales, uint32_t* unfit) {
    const EpSpecials specials = EpSpecials::of(f_.in);
    const uint32_t step = c_.dataThreadsInBlock();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < 512; i += step) shared_.largest[i] = kEpLeast;
    if (c_.threadInBlock() == 0) shared_.firsts[0] = ~0u;
    c_.dataAll(true);
    const bool measures = f_.in != f_.wire && f_.scaling != EpScaling::kStatic;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock() * kElements; i < f_.hidden; i += step * kElements) {
      const uint32_t n = f_.hidden - i < kElements ? f_.hidden - i : kElements;
      const Floats<kElements> v = loadFloats<In, kElements>(x + uint64_t{i} * kSize, n);
      uint32_t largest = 0;
      RH_UNROLL
      for (uint32_t j = 0; j < kElements; j++) {
        const uint32_t magnitude = bitsOf<uint32_t>(v.v[j]) & 0x7fffffffu;
        if (j < n && magnitude >= 0x7f800000u) c_.sharedMin(&shared_.firsts[0], i + j);
        largest = j < n && magnitude > largest ? magnitude : largest;
      }
      if (measures) c_.sharedMax(&shared_.largest[i / EpRowFormat::kBlock], largest);
    }
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); f_.in == f_.wire && i < f_.columns(); i += step) {
      if (isScaleSpecial(scales, i)) c_.sharedMin(&shared_.firsts[0], kScales);
    }
    c_.dataAll(true);
    if (c_.threadInBlock() != 0) return;
    const uint32_t first = shared_.firsts[0];
    uint32_t bits = 0;
    if (first < kScales) memcpy(&bits, x + uint64_t{first} * kSize, kSize);
    c_.storeState(unfit, first == ~0u ? 0 : first == kScales ? EpUnfit::of(0, EpSpecials::kScale) : EpUnfit::of(first, specials.what(bits)));
  }
  static constexpr uint32_t kScales = 0x10000000u;  // above all elements

  RH_FN bool isScaleSpecial(const char* scales, uint32_t i) const {
    if (f_.scaling == EpScaling::kUE8M0) return static_cast<uint8_t>(scales[i]) == 0xff;
    uint32_t bits;
    memcpy(&bits, scales + uint64_t{i} * 4, 4);
    return (bits & 0x7f800000u) == 0x7f800000u;
  }

  RH_FN void copy(const char* x, const char* scales, char* row) {
    const uint32_t data = f_.dataBytes(), step = c_.dataThreadsInBlock();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock() * 16; i < data; i += step * 16) {
      const uint32_t n = data - i < 16 ? data - i : 16;
      storePiece(row + i, n, loadPiece(x + i, n));
    }
    RH_ROLLED
    for (uint32_t i = data + c_.threadInBlock(); i < f_.scaleOffset(); i += step) row[i] = 0;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < f_.scaleBytes(); i += step) row[f_.scaleOffset() + i] = scales[i];
  }

  template <class Wire>
  RH_FN void convert(const char* x, char* row) {
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock() * kElements; i < f_.hidden; i += c_.dataThreadsInBlock() * kElements) {
      const uint32_t n = f_.hidden - i < kElements ? f_.hidden - i : kElements;
      storeFloats<Wire, kElements>(row + uint64_t{i} * sizeof(typename Wire::Bits), n, loadFloats<In, kElements>(x + uint64_t{i} * kSize, n));
    }
  }

  RH_FN void quantise(const char* x, char* row) {
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock() * kElements; i < f_.hidden; i += c_.dataThreadsInBlock() * kElements) {
      const uint32_t n = f_.hidden - i < kElements ? f_.hidden - i : kElements, block = i / EpRowFormat::kBlock;
      Floats<kElements> v = loadFloats<In, kElements>(x + uint64_t{i} * kSize, n);
      if (f_.scaling == EpScaling::kStatic) {
        RH_UNROLL
        for (uint32_t j = 0; j < kElements; j++) v.v[j] = v.v[j] / f_.staticScale;
      } else {
        const uint32_t largest = shared_.largest[block];
        const float factor = f_.scaling == EpScaling::kF32 ? epLinearFactor(largest) : epPowerFactor(largest);
        RH_UNROLL
        for (uint32_t j = 0; j < kElements; j++) v.v[j] = v.v[j] * factor;
      }
      storeFloats<E4M3, kElements>(row + i, n, v);
    }
    const uint32_t step = c_.dataThreadsInBlock();
    RH_ROLLED
    for (uint32_t i = f_.dataBytes() + c_.threadInBlock(); i < f_.scaleOffset(); i += step) row[i] = 0;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < f_.columns(); i += step) {
      char* to = row + f_.scaleOffset();
      if (f_.scaling == EpScaling::kF32) {
        const float scale = epLinearScale(shared_.largest[i]);
        memcpy(to + uint64_t{i} * 4, &scale, 4);
      } else {
        to[i] = static_cast<char>(epPowerScale(shared_.largest[i]));
      }
    }
  }

  C& c_;
  const EpEncodeCall& call_;
  const EpRowFormat& f_;
  EpShared& shared_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_ENCODE_H_
