// What is checked before anything is timed.
#ifndef RAILHEAD_BENCHMARKS_GPU_CHECKS_CUH_
#define RAILHEAD_BENCHMARKS_GPU_CHECKS_CUH_

#include <cmath>
#include <cstdarg>
#include <random>

#include "ranks.cuh"

namespace {

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
  for (const What what : {What::kOneshot, What::kTwoshot, What::kPull}) {
    for (const int elementBytes : {2, 4}) {
      for (const size_t count : counts) {
        Shape s = {count, elementBytes};
        s.offset = runs % 5 == 0 ? 0 : static_cast<int>(randomBits() % 16);
        s.threads = 32 << (runs % 4);
        s.inPlace = runs % 3 == 1;
        s.outside = runs % 7 == 6;
        for (int r = 0; r < ranks; r++) g.team[r].reduceGroup = g.blocks[r].reduceGroup = runs % 4 == 3 ? 3 : ranks;
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
  for (int r = 0; r < ranks; r++) g.team[r].reduceGroup = g.blocks[r].reduceGroup = ranks;
  printf("checked: %d all-reduces of %d ranks, odd counts and addresses, in place too, exact bits\n", runs, ranks);
}

// A graph replayed in a mix with eager calls of other sizes, over the wrap of the epoch.
void checkReplays(Group& g, int ranks) {
  const uint32_t nearWrap = 0xffffffffu - 20;
  for (int r = 0; r < ranks; r++) CHECK_CUDA(cudaMemcpy(&g.state[r]->epoch, &nearWrap, 4, cudaMemcpyHostToDevice));
  Shape s = {5000, 2};
  cudaGraphExec_t graph = capture(g, ranks, 3, [&](int r) { launch(g, What::kOneshot, r, s); });
  cudaGraphExec_t pulls = capture(g, ranks, 3, [&](int r) { launch(g, What::kPull, r, s); });
  int runs = 0;
  for (int i = 0; i < 30; i++) {
    const auto in = fillSend(g, ranks, s);
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaGraphLaunch(i % 3 == 2 ? pulls : graph, g.stream[0]));
    CHECK_CUDA(cudaDeviceSynchronize());
    if (stopped(g, ranks)) exit(1);
    expect(wrongSums(g, ranks, s, in) == 0, "replay %d near the wrap is wrong", i);
    Shape eager = {static_cast<size_t>(1 + randomBits() % 300000), 2};
    const auto in2 = fillSend(g, ranks, eager);
    CHECK_CUDA(cudaDeviceSynchronize());
    for (int r = 0; r < ranks; r++) launch(g, i % 3 == 0 ? What::kPull : i % 2 != 0 ? What::kTwoshot : What::kOneshot, r, eager);
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

// A rank that does not come, and an abort: everybody else leaves, says why, and names that rank.
void checkStops(int ranks) {
  for (const What what : {What::kOneshot, What::kTwoshot, What::kPull, What::kFused}) {
    for (const bool abort : {false, true}) {
      Group g = makeGroup(ranks);
      for (int r = 0; r < ranks; r++) g.control[r].timeoutNs = abort ? 20000000000ull : 20000000ull;
      Shape s = {4096, 2};
      s.rows = 1;
      s.hidden = 4096;
      for (int r = 0; r < ranks - 1; r++) launch(g, what, r, s);
      if (abort) {
        CHECK_CUDA(cudaStreamQuery(g.stream[0]) == cudaErrorNotReady ? cudaSuccess : cudaErrorUnknown);
        *static_cast<volatile uint32_t*>(g.host) = 1;
      }
      CHECK_CUDA(cudaDeviceSynchronize());
      for (int r = 0; r < ranks - 1; r++) {
        const Stop stop = static_cast<Stop>(g.host[16 + r]);
        const uint64_t missing = reinterpret_cast<uint64_t*>(g.host + 128)[r];
        expect(stop == (abort ? Stop::kAborted : Stop::kTimeout) && (missing >> (ranks - 1) & 1) != 0,
               "%s without rank %d: rank %d stopped with %u, waiting for %#llx", nameOf(what), ranks - 1, r, static_cast<uint32_t>(stop),
               static_cast<unsigned long long>(missing));
      }
    }
  }
  printf("checked: a rank that does not come, and an abort\n");
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

}  // namespace

#endif  // RAILHEAD_BENCHMARKS_GPU_CHECKS_CUH_
