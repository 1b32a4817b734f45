// Ranks whose threads have other floating-point environments: each a process of its own. They make the same calls twice, first all in the
// standard environment, then each in its own one. Every result must have the same bits both times, and every call must leave the caller's
// environment as it was, exception flags included. Between the calls the program uses integers only.
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vector>

#include "check.h"

namespace {

// Control and exception flags of the thread.
struct Environment {
  uint64_t control, flags;
  bool operator==(const Environment& e) const { return control == e.control && flags == e.flags; }
};

#if defined(__x86_64__)
constexpr uint32_t kFlags = 0x3f;
// control: MXCSR without its flags, and the x87 control word above it. flags: of both.
Environment environment() {
  uint32_t mxcsr;
  uint16_t word, status;
  asm volatile("stmxcsr %0\n\tfnstcw %1\n\tfnstsw %2" : "=m"(mxcsr), "=m"(word), "=m"(status));
  return {(mxcsr & ~kFlags) | uint64_t{word} << 32, (mxcsr & kFlags) | uint64_t{status} << 32};
}
void setEnvironment(const Environment& e) {
  const uint32_t mxcsr = static_cast<uint32_t>(e.control | e.flags);
  const uint16_t word = static_cast<uint16_t>(e.control >> 32);
  asm volatile("fnclex\n\tldmxcsr %0\n\tfldcw %1" ::"m"(mxcsr), "m"(word));
}
constexpr Environment kStandard = {0x1f80 | uint64_t{0x37f} << 32, 0};
constexpr Environment kOwn[] = {
    {0x1f80 | uint64_t{0x37f} << 32, 0x04},  // standard, with a flag
    {0x9fc0 | uint64_t{0x37f} << 32, 0x21},  // subnormal results and operands are zeros
    {0x5f80 | uint64_t{0xb7f} << 32, 0x00},  // rounds up
    {0x0000 | uint64_t{0x340} << 32, 0x00},  // every exception is a SIGFPE
};
#elif defined(__aarch64__)
Environment environment() {
  Environment e;
  asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(e.control), "=r"(e.flags));
  return e;
}
void setEnvironment(const Environment& e) { asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(e.control), "r"(e.flags)); }
constexpr Environment kStandard = {0, 0};
constexpr Environment kOwn[] = {
    {0, 0x02},         // standard, with a flag
    {1u << 24, 0x11},  // subnormal numbers are zeros
    {1u << 22, 0x00},  // rounds up
    {1u << 25, 0x00},  // every NaN is the default one
};
#endif
constexpr int kWorld = sizeof kOwn / sizeof kOwn[0];

// Calls f, which returns an rh_result, and checks that it leaves the environment as it was.
#define CALL(call)                        \
  do {                                    \
    const Environment before = environment(); \
    const rh_result result = (call);      \
    CHECK(environment() == before);       \
    OK(result);                           \
  } while (0)

uint64_t random64(uint64_t* state) {  // splitmix64
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

struct Type {
  rh_dtype dtype;
  int exponent, mantissa;  // bits
  size_t bytes() const { return static_cast<size_t>(1 + exponent + mantissa) / 8; }
};
constexpr Type kTypes[] = {{RH_F32, 8, 23}, {RH_F64, 11, 52}, {RH_BF16, 8, 7}, {RH_F16, 5, 10}, {RH_FP8_E4M3, 4, 3}, {RH_FP8_E5M2, 5, 2}};
constexpr Type kF32 = kTypes[0];

// One element: subnormal, tiny, around 1 (sums round), close to overflow, infinite or NaN.
uint64_t element(const Type& t, uint64_t* state, bool finite) {
  const uint64_t r = random64(state);
  const uint64_t top = (uint64_t{1} << t.exponent) - 1, one = top >> 1;
  const uint64_t exponents[] = {0, 0, 1, one - 1, one, one + 1, top - 1, top};
  uint64_t exponent = exponents[r % 8];
  if (finite && exponent >= top - 1) exponent = one;
  uint64_t mantissa = r >> 8 & ((uint64_t{1} << t.mantissa) - 1);
  if (exponent == top && (r >> 62) != 0) mantissa = 0;
  return (r >> 61 & 1) << (t.exponent + t.mantissa) | exponent << t.mantissa | mantissa;
}

std::vector<unsigned char> elements(const Type& t, size_t count, uint64_t seed, bool finite = false) {
  std::vector<unsigned char> out(count * t.bytes());
  for (size_t i = 0; i < count; i++) {
    const uint64_t bits = element(t, &seed, finite);
    memcpy(out.data() + i * t.bytes(), &bits, t.bytes());
  }
  return out;
}

// What the calls of one pass have returned.
using Results = std::vector<std::vector<unsigned char>>;

constexpr size_t kCounts[] = {1, 37, 20000};

void reductions(rh_comm* comm, int rank, const Type& t, rh_op op, Results* results) {
  uint64_t seed = static_cast<uint64_t>(rank) << 32 | static_cast<uint64_t>(t.dtype) << 16;
  for (const size_t count : kCounts) {
    const std::vector<unsigned char> in = elements(t, count * kWorld, seed++);
    std::vector<unsigned char> sum(count * t.bytes()), part(count * t.bytes()), root(count * t.bytes());
    CALL(rh_all_reduce(in.data(), sum.data(), count, t.dtype, op, comm, nullptr));
    CALL(rh_reduce_scatter(in.data(), part.data(), count, t.dtype, op, comm, nullptr));
    const int32_t at = static_cast<int32_t>(count % kWorld);
    CALL(rh_reduce(in.data(), root.data(), count, t.dtype, op, at, comm, nullptr));
    std::vector<unsigned char> all(sum.size() * kWorld);
    CALL(rh_all_gather(sum.data(), all.data(), sum.size(), RH_U8, comm, nullptr));
    for (size_t r = 0; r < kWorld; r++) CHECK(memcmp(all.data() + r * sum.size(), sum.data(), sum.size()) == 0);
    results->push_back(sum);
    results->push_back(part);
    results->push_back(root);
  }
}

void allReductions(rh_comm* comm, int rank, Results* results) {
  for (const Type& t : kTypes) {
    for (const rh_op op : {RH_SUM, RH_PROD, RH_MIN, RH_MAX, RH_AVG}) reductions(comm, rank, t, op, results);
    const uint64_t third32 = 0x3eaaaaab, third64 = 0x3fd5555555555555;
    rh_op scaled = -1;
    CALL(rh_op_create_pre_mul_sum(comm, t.dtype, t.dtype == RH_F64 ? &third64 : &third32, &scaled));
    reductions(comm, rank, t, scaled, results);
    CALL(rh_op_destroy(comm, scaled));
  }
}

constexpr uint32_t kTokens = 16, kHidden = 300, kExperts = 8, kTopk = 3;

float floatOf(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

rh_ep_config shapeOf(rh_dtype wire, rh_dtype combine, uint32_t scale, uint32_t staticScale) {
  rh_ep_config c = RH_EP_CONFIG_INIT;
  c.mode = scale == RH_EP_SCALE_UE8M0 ? RH_EP_HT : RH_EP_LL;
  c.max_tokens_per_rank = kTokens;
  c.hidden = kHidden;
  c.num_experts = kExperts;
  c.topk = kTopk;
  c.dtype = RH_F32;
  c.wire_dtype = wire;
  c.combine_dtype = combine;
  c.scale_format = scale;
  c.static_scale = floatOf(staticScale);
  return c;
}

// Dispatches tokens and combines what experts could have made of them.
void experts(rh_comm* comm, int rank, const rh_ep_config& shape, Results* results) {
  rh_ep* ep = nullptr;
  CALL(rh_ep_create(comm, &shape, &ep));
  const uint64_t seed = static_cast<uint64_t>(rank) << 40 | shape.scale_format << 8 | static_cast<uint64_t>(shape.wire_dtype);
  const std::vector<unsigned char> x = elements(kF32, kTokens * kHidden, seed, true), weights = elements(kF32, kTokens * kTopk, seed + 1);
  std::vector<int32_t> idx(kTokens * kTopk);
  for (uint32_t t = 0; t < kTokens; t++) {
    for (uint32_t k = 0; k < kTopk; k++) idx[t * kTopk + k] = static_cast<int32_t>((t * 5 + k * 3 + static_cast<uint32_t>(rank)) % kExperts);
  }
  rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
  in.x = x.data();
  in.topk_idx = idx.data();
  in.topk_weights = reinterpret_cast<const float*>(weights.data());
  in.num_tokens = kTokens;
  in.hidden = kHidden;
  in.idx_dtype = RH_I32;
  constexpr size_t kRows = kWorld * kTokens * kTopk;
  std::vector<unsigned char> rows(kRows * kHidden * 4), scales(kRows * 3 * 4);
  rh_ep_dispatch_out room = RH_EP_DISPATCH_OUT_INIT;
  room.layout = RH_EP_FLAT;
  room.capacity = kRows;
  room.x = rows.data();
  room.scales = shape.wire_dtype == RH_FP8_E4M3 && shape.scale_format != RH_EP_SCALE_STATIC ? scales.data() : nullptr;
  rh_ep_handle* handle = nullptr;
  CALL(rh_ep_dispatch(ep, &in, &room, &handle, nullptr));
  const std::vector<unsigned char> y = elements(kF32, kRows * kHidden, seed + 2);
  std::vector<unsigned char> out(kTokens * kHidden * 4);
  rh_ep_combine_args sums = RH_EP_COMBINE_ARGS_INIT;
  sums.y = y.data();
  sums.add = x.data();
  sums.out = out.data();
  sums.y_dtype = sums.out_dtype = RH_F32;
  CALL(rh_ep_combine(handle, &sums, nullptr, nullptr));
  CALL(rh_ep_destroy(ep));
  results->push_back(rows);
  results->push_back(scales);
  results->push_back(out);
}

void allExperts(rh_comm* comm, int rank, Results* results) {
  experts(comm, rank, shapeOf(RH_FP8_E4M3, RH_F32, RH_EP_SCALE_F32, 0), results);
  experts(comm, rank, shapeOf(RH_FP8_E4M3, RH_BF16, RH_EP_SCALE_UE8M0, 0), results);
  experts(comm, rank, shapeOf(RH_FP8_E4M3, RH_F16, RH_EP_SCALE_STATIC, 0x3d4ccccd), results);  // 0.05
  experts(comm, rank, shapeOf(RH_FP8_E4M3, RH_F32, RH_EP_SCALE_STATIC, 0x00012345), results);  // subnormal
  experts(comm, rank, shapeOf(RH_BF16, RH_BF16, 0, 0), results);
  experts(comm, rank, shapeOf(RH_F16, RH_F16, 0, 0), results);
}

// Refused: a scale that is no number, a signalling one and 0.
void refusals() {
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x00000000u, 0xff800000u}) {
    const rh_ep_config c = shapeOf(RH_FP8_E4M3, RH_F32, RH_EP_SCALE_STATIC, bits);
    uint64_t bytes = 0;
    const Environment before = environment();
    const rh_result result = rh_ep_buffer_size(&c, kWorld, &bytes);
    CHECK(environment() == before);
    FAILS(result, RH_ERR_INVALID_ARGUMENT, "static_scale", "above 0");
  }
}

int64_t milliseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// Until the library has read the clock again several times, to measure the rate of the time stamp counter (every 50 ms).
void barriers(rh_comm* comm) {
  unsigned char go = 1;
  for (const int64_t end = milliseconds() + 250; go != 0;) {
    CALL(rh_barrier(comm, nullptr));
    go = milliseconds() < end;
    CALL(rh_broadcast(&go, &go, 1, RH_U8, 0, comm, nullptr));
  }
}

Results pass(rh_comm* comm, int rank) {
  Results results;
  allReductions(comm, rank, &results);
  allExperts(comm, rank, &results);
  refusals();
  barriers(comm);
  return results;
}

void runRank(int rank) {
  rh_session* session = open_session();
  rh_comm_config config = comm_config("environments", rank, kWorld);
  config.heap_bytes = 64 << 20;
  rh_comm* comm = nullptr;
  OK(rh_comm_init(session, &config, &comm));
  setEnvironment(kStandard);
  const Results standard = pass(comm, rank);
  setEnvironment(kOwn[rank]);
  const Results own = pass(comm, rank);
  CHECK(environment() == kOwn[rank]);
  setEnvironment(kStandard);
  CHECK(own.size() == standard.size());
  for (size_t i = 0; i < own.size(); i++) {
    if (own[i] != standard[i]) fprintf(stderr, "rank %d: result %zu differs\n", rank, i);
    CHECK(own[i] == standard[i]);
  }
  // A session that is opened in the rank's environment, whose control thread inherits that.
  setEnvironment(kOwn[rank]);
  rh_session* second = nullptr;
  rh_session_config sessionConfig = RH_SESSION_CONFIG_INIT;
  CALL(rh_connect(&sessionConfig, &second));
  rh_comm* other = nullptr;
  config = comm_config("all in their own", rank, kWorld);
  CALL(rh_comm_init(second, &config, &other));
  rh_comm* half = nullptr;
  CALL(rh_comm_split(other, rank % 2, rank, &half));
  barriers(other);
  CALL(rh_comm_finalize(half));
  CALL(rh_comm_finalize(other));
  CALL(rh_close(second));
  CALL(rh_comm_finalize(comm));
  CALL(rh_close(session));
}

}  // namespace

int main() {
  pid_t children[kWorld];
  for (int rank = 0; rank < kWorld; rank++) {
    children[rank] = fork();
    CHECK(children[rank] >= 0);
    if (children[rank] == 0) {
      runRank(rank);
      return 0;
    }
  }
  int failed = 0;
  for (int rank = 0; rank < kWorld; rank++) {
    int status = 0;
    CHECK(waitpid(children[rank], &status, 0) == children[rank]);
    if (status == 0) continue;
    fprintf(stderr, "rank %d ended with wait status %#x\n", rank, static_cast<unsigned>(status));
    failed = 1;
  }
  return failed;
}
