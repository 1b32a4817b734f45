// Checks and times the GPU all-reduces with eight virtual ranks: eight streams of one process on one GPU.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels -Ikernels/include benchmarks/gpu/virtual_ranks.cu -o virtual_ranks
//   ./virtual_ranks            check, then time
//   ./virtual_ranks check      check alone (for compute-sanitizer)
//
// A time is that of one operation on all eight ranks: kRounds operations in a row on each stream, all in one graph, over
// kRounds; the median of kRepeats replays. "hand" is a one-shot kernel written by hand for eight ranks and aligned bf16,
// with the same packets: what the vocabulary is measured against. "empty" are eight kernels that do nothing.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "allreduce.cu"

#define CHECK_CUDA(call)                                                                      \
  do {                                                                                        \
    const cudaError_t e = (call);                                                             \
    if (e != cudaSuccess) {                                                                   \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e));   \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

namespace {

constexpr int kRanks = 8;
constexpr uint32_t kSlotBytes = 2 << 20;  // 65536 tiles: 1 MiB of a message in one epoch
constexpr size_t kMaxBytes = 3 << 20;
constexpr int kRounds = 40, kRepeats = 21;
constexpr int kMaxBlocks = 16;  // eight ranks of 16 blocks are resident together on 132 multiprocessors

struct HandTeam {
  char* inbox[kRanks];
  int rank;
  PacketState* state;
};

// One-shot by hand: eight ranks, one tile a thread, aligned bf16.
__global__ void handOneshot(const __grid_constant__ HandTeam t, const uint4* send, uint4* recv, uint32_t tiles) {
  const uint32_t epoch = t.state->epoch + 1;
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < tiles) {
    const uint4 v = send[i];
    const size_t half = static_cast<size_t>(epoch & 1) * kPhases * kRanks * kSlotBytes;
#pragma unroll
    for (int k = 1; k < kRanks; k++) {
      char* p = t.inbox[(t.rank + k) & (kRanks - 1)] + half + static_cast<size_t>(t.rank) * kSlotBytes + static_cast<size_t>(i) * 32;
      asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(epoch), "r"(v.y), "r"(epoch) : "memory");
      asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p + 16), "r"(v.z), "r"(epoch), "r"(v.w), "r"(epoch) : "memory");
    }
    uint4 a[kRanks], b[kRanks];
    const char* own = t.inbox[t.rank] + half + static_cast<size_t>(i) * 32;
    auto load = [](const char* p) {
      uint4 x;
      asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p) : "memory");
      return x;
    };
#pragma unroll
    for (int r = 0; r < kRanks; r++) {
      if (r == t.rank) continue;
      a[r] = load(own + static_cast<size_t>(r) * kSlotBytes);
      b[r] = load(own + static_cast<size_t>(r) * kSlotBytes + 16);
    }
    float sum[8];
#pragma unroll
    for (int r = 0; r < kRanks; r++) {
      uint32_t w[4] = {v.x, v.y, v.z, v.w};
      if (r != t.rank) {
        // Bounded like every wait: at about 1 us a turn this gives up after seconds.
        for (int turn = 0; turn < 4000000 && (a[r].y != epoch || a[r].w != epoch || b[r].y != epoch || b[r].w != epoch); turn++) {
          a[r] = load(own + static_cast<size_t>(r) * kSlotBytes);
          b[r] = load(own + static_cast<size_t>(r) * kSlotBytes + 16);
        }
        w[0] = a[r].x, w[1] = a[r].z, w[2] = b[r].x, w[3] = b[r].z;
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float low = __uint_as_float(w[k] << 16), high = __uint_as_float(w[k] & 0xffff0000u);
        sum[2 * k] = r == 0 ? low : sum[2 * k] + low;
        sum[2 * k + 1] = r == 0 ? high : sum[2 * k + 1] + high;
      }
    }
    uint32_t out[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const __nv_bfloat162 h = __floats2bfloat162_rn(sum[2 * k], sum[2 * k + 1]);
      memcpy(&out[k], &h, 4);
    }
    recv[i] = make_uint4(out[0], out[1], out[2], out[3]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (gridDim.x == 1) {
      t.state->epoch = epoch;
    } else if (atomicAdd(&t.state->blocksDone, 1u) == gridDim.x - 1) {
      t.state->blocksDone = 0;
      t.state->epoch = epoch;
    }
  }
}

__global__ void emptyKernel() {}

// The group: inboxes, states, buffers with room for misaligned starts.
struct Group {
  PacketTeam team[kRanks];
  HandTeam hand[kRanks];
  WaitControl control[kRanks];
  PacketState* state[kRanks];
  char* inbox[kRanks];
  uint64_t inboxBytes;
  char *send[kRanks], *recv[kRanks], *residual[kRanks];
  char* weight;
  uint32_t* host;  // word 0: abort; 16 + r: stop; from 64: missing, 64 bits each
  cudaStream_t stream[kRanks];
};

Group makeGroup(int ranks) {
  Group g = {};
  CHECK_CUDA(cudaHostAlloc(&g.host, 4096, cudaHostAllocMapped));
  memset(g.host, 0, 4096);
  g.inboxBytes = packetInboxBytes(ranks, kSlotBytes);
  for (int r = 0; r < ranks; r++) {
    CHECK_CUDA(cudaMalloc(&g.inbox[r], g.inboxBytes));
    CHECK_CUDA(cudaMemset(g.inbox[r], 0, g.inboxBytes));
    CHECK_CUDA(cudaMalloc(&g.state[r], sizeof(PacketState)));
    CHECK_CUDA(cudaMemset(g.state[r], 0, sizeof(PacketState)));
    for (char** p : {&g.send[r], &g.recv[r], &g.residual[r]}) CHECK_CUDA(cudaMalloc(p, kMaxBytes + 256));
    CHECK_CUDA(cudaStreamCreateWithFlags(&g.stream[r], cudaStreamNonBlocking));
  }
  CHECK_CUDA(cudaMalloc(&g.weight, 1 << 16));
  for (int r = 0; r < ranks; r++) {
    g.control[r] = {g.host, 3000000000ull, g.host + 16 + r, reinterpret_cast<uint64_t*>(g.host + 128) + r};
    g.team[r].rank = r;
    g.team[r].worldSize = ranks;
    g.team[r].reduceGroup = ranks;
    g.team[r].state = g.state[r];
    g.team[r].inboxes.own = g.inbox[r];
    g.team[r].inboxes.slotBytes = kSlotBytes;
    for (int k = 0; k < ranks; k++) g.team[r].inboxes.peer[k] = g.inbox[(r + k) % ranks];
    g.hand[r].rank = r;
    g.hand[r].state = g.state[r];
    for (int p = 0; p < kRanks && ranks == kRanks; p++) g.hand[r].inbox[p] = g.inbox[p];
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  return g;
}

float fromBF16(uint16_t b) {
  const uint32_t u = static_cast<uint32_t>(b) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
uint16_t toBF16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

enum class What { kEmpty, kHand, kOneshot, kTwoshot, kFused };
const char* nameOf(What w) {
  static const char* names[] = {"empty", "hand", "oneshot", "twoshot", "fused"};
  return names[static_cast<int>(w)];
}

struct Shape {
  size_t count;  // elements
  int elementBytes;
  int offset = 0;  // bytes by which send and recv are misaligned
  int threads = 128;
  uint32_t rows = 1, hidden = 0;  // of fused
  bool inPlace = false;
};

void launch(const Group& g, What what, int r, const Shape& s) {
  const char* send = g.send[r] + s.offset;
  char* recv = (s.inPlace ? g.send[r] : g.recv[r]) + s.offset;
  const uint32_t tiles = static_cast<uint32_t>((s.count * s.elementBytes + 15) / 16);
  const uint32_t share = what == What::kTwoshot ? (tiles + g.team[r].worldSize - 1) / g.team[r].worldSize : tiles;
  const int blocks = std::clamp(static_cast<int>((share + s.threads - 1) / s.threads), 1, kMaxBlocks);
  cudaStream_t stream = g.stream[r];
  switch (what) {
    case What::kEmpty: emptyKernel<<<1, 64, 0, stream>>>(); break;
    case What::kHand:
      handOneshot<<<blocks, s.threads, 0, stream>>>(g.hand[r], reinterpret_cast<const uint4*>(send), reinterpret_cast<uint4*>(recv), tiles);
      break;
    case What::kOneshot:
      if (s.elementBytes == 2) {
        rh_allreduce_oneshot_bf16<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      } else {
        rh_allreduce_oneshot_f32<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      }
      break;
    case What::kTwoshot:
      if (s.elementBytes == 2) {
        rh_allreduce_twoshot_bf16<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      } else {
        rh_allreduce_twoshot_f32<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      }
      break;
    case What::kFused: {
      // A row is spread over a cluster of up to 8 blocks while there are blocks for it, so that a thread has few tiles.
      const uint32_t perRow = s.hidden / 8;
      int cluster = 1;
      while (cluster < 8 && cluster * 64u < perRow && cluster * 2 * static_cast<int>(s.rows) <= kMaxBlocks) cluster *= 2;
      const int threads = std::clamp(static_cast<int>((perRow / static_cast<uint32_t>(cluster) + 31) / 32 * 32), 32, 256);
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(cluster * std::min<int>(static_cast<int>(s.rows), kMaxBlocks / cluster)));
      config.blockDim = dim3(static_cast<unsigned>(threads));
      config.stream = stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      CHECK_CUDA(cudaLaunchKernelEx(&config, rh_allreduce_rmsnorm_bf16, g.team[r], g.control[r], send, g.residual[r],
                                    static_cast<const char*>(g.weight), recv, s.rows, s.hidden, 1e-5f));
      break;
    }
  }
  CHECK_CUDA(cudaGetLastError());
}

bool stopped(const Group& g, int ranks) {
  for (int r = 0; r < ranks; r++) {
    if (g.host[16 + r] != 0) {
      fprintf(stderr, "rank %d gave up (%u), waiting for ranks %#llx\n", r, g.host[16 + r],
              static_cast<unsigned long long>(reinterpret_cast<uint64_t*>(g.host + 128)[r]));
      return true;
    }
  }
  return false;
}

cudaGraphExec_t capture(const Group& g, int ranks, int rounds, const std::function<void(int)>& body) {
  cudaEvent_t fork, join;
  CHECK_CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK_CUDA(cudaStreamBeginCapture(g.stream[0], cudaStreamCaptureModeThreadLocal));
  CHECK_CUDA(cudaEventRecord(fork, g.stream[0]));
  for (int r = 1; r < ranks; r++) CHECK_CUDA(cudaStreamWaitEvent(g.stream[r], fork, 0));
  for (int k = 0; k < rounds; k++) {
    for (int r = 0; r < ranks; r++) body(r);
  }
  for (int r = 1; r < ranks; r++) {
    CHECK_CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CHECK_CUDA(cudaEventRecord(join, g.stream[r]));
    CHECK_CUDA(cudaStreamWaitEvent(g.stream[0], join, 0));
  }
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_CUDA(cudaStreamEndCapture(g.stream[0], &graph));
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return exec;
}

// ---- Checks ----

std::mt19937_64 randomBits(12345);

// Fills send with fresh random values whose exponents are spread, and returns them as floats, by rank.
std::vector<std::vector<float>> fillSend(const Group& g, int ranks, const Shape& s) {
  std::vector<std::vector<float>> in(ranks, std::vector<float>(s.count));
  for (int r = 0; r < ranks; r++) {
    std::vector<char> raw(s.count * s.elementBytes);
    for (size_t i = 0; i < s.count; i++) {
      const float f = std::ldexp(static_cast<float>(static_cast<int>(randomBits() % 2000001) - 1000000) / 1e6f,
                                 static_cast<int>(randomBits() % (s.elementBytes == 2 ? 4 : 20)));
      if (s.elementBytes == 2) {
        const uint16_t h = toBF16(f);
        memcpy(&raw[i * 2], &h, 2);
        in[r][i] = fromBF16(h);
      } else {
        memcpy(&raw[i * 4], &f, 4);
        in[r][i] = f;
      }
    }
    CHECK_CUDA(cudaMemset(g.send[r], 0xff, kMaxBytes + 256));
    CHECK_CUDA(cudaMemset(g.recv[r], 0xff, kMaxBytes + 256));
    CHECK_CUDA(cudaMemcpy(g.send[r] + s.offset, raw.data(), raw.size(), cudaMemcpyHostToDevice));
  }
  return in;
}

float foldOf(const std::vector<std::vector<float>>& in, size_t i, int reduceGroup) {
  float total = 0;
  for (size_t begin = 0; begin < in.size(); begin += static_cast<size_t>(reduceGroup)) {
    float group = in[begin][i];
    for (size_t r = begin + 1; r < std::min(in.size(), begin + static_cast<size_t>(reduceGroup)); r++) group += in[r][i];
    total = begin == 0 ? group : total + group;
  }
  return total;
}

// Exact bits against the fold in f32; guard bytes behind and before recv must be untouched.
long wrongSums(const Group& g, int ranks, const Shape& s, const std::vector<std::vector<float>>& in) {
  long wrong = 0;
  std::vector<uint8_t> raw(s.count * s.elementBytes + static_cast<size_t>(s.offset) + 64);
  for (int r = 0; r < ranks; r++) {
    CHECK_CUDA(cudaMemcpy(raw.data(), s.inPlace ? g.send[r] : g.recv[r], raw.size(), cudaMemcpyDeviceToHost));
    for (int i = 0; i < s.offset; i++) wrong += raw[i] != 0xff;
    for (size_t i = raw.size() - 64; i < raw.size(); i++) wrong += raw[i] != 0xff;
    for (size_t i = 0; i < s.count; i++) {
      const float want = foldOf(in, i, g.team[0].reduceGroup);
      if (s.elementBytes == 2) {
        uint16_t h;
        memcpy(&h, &raw[s.offset + i * 2], 2);
        wrong += h != toBF16(want);
      } else {
        wrong += memcmp(&raw[s.offset + i * 4], &want, 4) != 0;
      }
    }
  }
  return wrong;
}

int failures = 0;
void expect(bool good, const char* format, ...) __attribute__((format(printf, 2, 3)));
void expect(bool good, const char* format, ...) {
  if (good) return;
  failures++;
  va_list args;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

void checkSums(Group& g, int ranks) {
  const size_t counts[] = {1, 3, 7, 8, 9, 255, 512, 1000, 4096, 4097, 32768, 65537, 200003, 600001};
  int runs = 0;
  for (const What what : {What::kOneshot, What::kTwoshot}) {
    for (const int elementBytes : {2, 4}) {
      for (const size_t count : counts) {
        Shape s = {count, elementBytes};
        s.offset = runs % 5 == 0 ? 0 : static_cast<int>(randomBits() % 16);
        s.threads = 32 << (runs % 4);
        s.inPlace = runs % 3 == 1;
        for (int r = 0; r < ranks; r++) g.team[r].reduceGroup = runs % 4 == 3 ? 3 : ranks;
        const auto in = fillSend(g, ranks, s);
        CHECK_CUDA(cudaDeviceSynchronize());
        for (int r = 0; r < ranks; r++) launch(g, what, r, s);
        CHECK_CUDA(cudaDeviceSynchronize());
        if (stopped(g, ranks)) exit(1);
        const long wrong = wrongSums(g, ranks, s, in);
        expect(wrong == 0, "%s: %d ranks, %zu elements of %d bytes at offset %d: %ld wrong", nameOf(what), ranks, count, elementBytes, s.offset, wrong);
        runs++;
      }
    }
  }
  for (int r = 0; r < ranks; r++) g.team[r].reduceGroup = ranks;
  printf("checked: %d all-reduces of %d ranks, odd counts and addresses, in place too, exact bits\n", runs, ranks);
}

// A graph replayed in a mix with eager calls of other sizes, over the wrap of the epoch.
void checkReplays(Group& g, int ranks) {
  const uint32_t nearWrap = 0xffffffffu - 20;
  for (int r = 0; r < ranks; r++) CHECK_CUDA(cudaMemcpy(&g.state[r]->epoch, &nearWrap, 4, cudaMemcpyHostToDevice));
  Shape s = {5000, 2};
  cudaGraphExec_t graph = capture(g, ranks, 3, [&](int r) { launch(g, What::kOneshot, r, s); });
  int runs = 0;
  for (int i = 0; i < 30; i++) {
    const auto in = fillSend(g, ranks, s);
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaGraphLaunch(graph, g.stream[0]));
    CHECK_CUDA(cudaDeviceSynchronize());
    if (stopped(g, ranks)) exit(1);
    expect(wrongSums(g, ranks, s, in) == 0, "replay %d near the wrap is wrong", i);
    Shape eager = {static_cast<size_t>(1 + randomBits() % 300000), 2};
    const auto in2 = fillSend(g, ranks, eager);
    CHECK_CUDA(cudaDeviceSynchronize());
    for (int r = 0; r < ranks; r++) launch(g, i % 2 != 0 ? What::kTwoshot : What::kOneshot, r, eager);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (stopped(g, ranks)) exit(1);
    expect(wrongSums(g, ranks, eager, in2) == 0, "eager call %d near the wrap is wrong", i);
    runs += 4;
  }
  uint32_t epoch;
  CHECK_CUDA(cudaMemcpy(&epoch, &g.state[0]->epoch, 4, cudaMemcpyDeviceToHost));
  expect(epoch < nearWrap, "the epoch did not wrap: %u", epoch);
  printf("checked: %d operations over the wrap of the epoch, replays and eager calls mixed\n", runs);
}

void checkFused(Group& g, int ranks) {
  struct Case {
    uint32_t rows, hidden;
  };
  for (const Case c : {Case{1, 512}, Case{1, 4096}, Case{8, 4096}, Case{16, 2880}, Case{40, 7168}, Case{1, 8192}, Case{3, 64}}) {
    Shape s = {static_cast<size_t>(c.rows) * c.hidden, 2};
    s.rows = c.rows;
    s.hidden = c.hidden;
    const auto in = fillSend(g, ranks, s);
    std::vector<uint16_t> weight(c.hidden), residual(s.count);
    for (auto& w : weight) w = toBF16(0.5f + static_cast<float>(randomBits() % 1000) / 1000.f);
    for (auto& x : residual) x = toBF16(static_cast<float>(static_cast<int>(randomBits() % 2001) - 1000) / 1000.f);
    CHECK_CUDA(cudaMemcpy(g.weight, weight.data(), c.hidden * 2, cudaMemcpyHostToDevice));
    for (int r = 0; r < ranks; r++) CHECK_CUDA(cudaMemcpy(g.residual[r], residual.data(), s.count * 2, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaDeviceSynchronize());
    for (int r = 0; r < ranks; r++) launch(g, What::kFused, r, s);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (stopped(g, ranks)) exit(1);
    double worst = 0;
    long wrongResidual = 0;
    std::vector<uint16_t> out(s.count), after(s.count);
    for (int r = 0; r < ranks; r++) {
      CHECK_CUDA(cudaMemcpy(out.data(), g.recv[r], s.count * 2, cudaMemcpyDeviceToHost));
      CHECK_CUDA(cudaMemcpy(after.data(), g.residual[r], s.count * 2, cudaMemcpyDeviceToHost));
      for (uint32_t row = 0; row < c.rows; row++) {
        double squares = 0;
        for (uint32_t i = 0; i < c.hidden; i++) {
          const size_t at = static_cast<size_t>(row) * c.hidden + i;
          const float sum = fromBF16(toBF16(foldOf(in, at, ranks)));
          wrongResidual += after[at] != toBF16(sum + fromBF16(residual[at]));
          squares += static_cast<double>(fromBF16(after[at])) * fromBF16(after[at]);
        }
        const double scale = 1 / std::sqrt(squares / c.hidden + 1e-5);
        for (uint32_t i = 0; i < c.hidden; i++) {
          const size_t at = static_cast<size_t>(row) * c.hidden + i;
          const double want = fromBF16(after[at]) * scale * fromBF16(weight[i]);
          const double error = std::fabs(fromBF16(out[at]) - want) / std::max(1e-3, std::fabs(want));
          worst = error == error ? std::max(worst, error) : 1e9;
        }
      }
    }
    // Half a unit in the last place of bf16 is at most 2^-8 of the value; the f32 arithmetic before it adds a little.
    expect(worst < 0.00391 + 1e-5 && wrongResidual == 0, "fused %u x %u: relative error %.5f, %ld residuals wrong", c.rows, c.hidden, worst, wrongResidual);
  }
  printf("checked: all-reduce + residual + RMSNorm against fp64\n");
}

// ---- Times ----

float timeUs(const Group& g, What what, const Shape& s) {
  cudaGraphExec_t graph = capture(g, kRanks, kRounds, [&](int r) { launch(g, what, r, s); });
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 3; i++) {
    CHECK_CUDA(cudaEventRecord(begin, g.stream[0]));
    CHECK_CUDA(cudaGraphLaunch(graph, g.stream[0]));
    CHECK_CUDA(cudaEventRecord(end, g.stream[0]));
    CHECK_CUDA(cudaStreamSynchronize(g.stream[0]));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms * 1000 / kRounds);
  }
  if (stopped(g, kRanks)) exit(1);
  CHECK_CUDA(cudaGraphExecDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

float bestUs(const Group& g, What what, size_t bytes) {
  float best = 1e9;
  for (const int threads : {64, 128, 256}) {
    Shape s = {bytes / 2, 2};
    s.threads = threads;
    if (what == What::kHand && bytes > static_cast<size_t>(kMaxBlocks) * threads * 16) continue;
    if (what == What::kFused) {
      if (threads != 64 || bytes % 8192 != 0) continue;
      s.hidden = 4096;
      s.rows = static_cast<uint32_t>(bytes / 8192);
    }
    best = std::min(best, timeUs(g, what, s));
  }
  return best;
}

void times(const Group& g) {
  Shape nothing = {512, 2};
  printf("us for one operation on %d virtual ranks, bf16 (the best of 64, 128 and 256 threads a block); fused: hidden 4096\n", kRanks);
  printf("%10s %8s %8s %8s %8s %8s\n", "bytes", "empty", "hand", "oneshot", "twoshot", "fused");
  for (size_t bytes = 1024; bytes <= (1 << 20); bytes *= 2) {
    printf("%10zu %8.2f", bytes, timeUs(g, What::kEmpty, nothing));
    for (const What what : {What::kHand, What::kOneshot, What::kTwoshot, What::kFused}) {
      const float us = bestUs(g, what, bytes);
      if (us < 1e8) {
        printf(" %8.2f", us);
      } else {
        printf(" %8s", "-");
      }
    }
    printf("\n");
    fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  cudaDeviceProp p;
  CHECK_CUDA(cudaGetDeviceProperties(&p, 0));
  printf("%s, %d multiprocessors\n", p.name, p.multiProcessorCount);
  if (p.multiProcessorCount < kRanks * kMaxBlocks) {
    fprintf(stderr, "%d blocks would not be resident together here\n", kRanks * kMaxBlocks);
    return 1;
  }
  Group g = makeGroup(kRanks);
  checkSums(g, kRanks);
  checkFused(g, kRanks);
  checkReplays(g, kRanks);
  for (const int ranks : {2, 3, 5, 7}) {
    Group small = makeGroup(ranks);
    checkSums(small, ranks);
  }
  if (failures != 0) {
    fprintf(stderr, "%d checks failed\n", failures);
    return 1;
  }
  if (argc < 2 || strcmp(argv[1], "check") != 0) times(g);
  return 0;
}
