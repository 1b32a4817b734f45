#include "checks.h"

#include <math.h>
#include <stdarg.h>

#include <chrono>
#include <random>
#include <thread>

#include "testdata/cpu_bits.h"

namespace virtual_ranks {

int failures = 0;

namespace {

__attribute__((format(printf, 2, 3))) void expect(bool good, const char* format, ...) {
  if (good) return;
  failures++;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

using Rank = std::vector<char>;

size_t bytesOf(const Shape& s) { return s.count * cpuTypeBytes(s.type); }
constexpr size_t kGuard = 64;

// Poisons the windows around and in the buffers, and stores the contributions.
void fill(const Group& g, const Shape& s, const std::vector<Rank>& in) {
  for (int r = 0; r < g.world; r++) {
    for (int w = 0; w < 2; w++) CHECK_CUDA(cudaMemset(g.window(r, w), 0xa5, s.sendAt + s.recvAt + bytesOf(s) + kGuard));
    CHECK_CUDA(cudaMemcpy(g.window(r, 0) + s.sendAt, in[static_cast<size_t>(r)].data(), bytesOf(s), cudaMemcpyHostToDevice));
  }
  CHECK_CUDA(cudaDeviceSynchronize());
}

std::vector<Rank> contributions(const Group& g, const Shape& s, uint64_t seed) {
  std::vector<Rank> in(static_cast<size_t>(g.world), Rank(bytesOf(s)));
  for (size_t r = 0; r < in.size(); r++) fillWithEveryValue(s.type, seed + r * 1000003, in[r].data(), s.count);
  return in;
}

void compare(const Group& g, const Shape& s, const std::vector<Rank>& in, const char* what) {
  std::vector<const char*> sends;
  for (const Rank& rank : in) sends.push_back(rank.data());
  Rank want(bytesOf(s));
  cpuAllReduce(s.type, s.reduction, s.scale, sends.data(), g.world, s.reduceGroup == 0 ? g.world : s.reduceGroup, s.count, want.data());
  const size_t at = s.inPlace ? s.sendAt : s.recvAt;
  Rank have(at + want.size() + kGuard);
  for (int r = 0; r < g.world; r++) {
    CHECK_CUDA(cudaMemcpy(have.data(), g.window(r, s.inPlace ? 0 : 1), have.size(), cudaMemcpyDeviceToHost));
    const bool same = memcmp(have.data() + at, want.data(), want.size()) == 0;
    bool guarded = true;
    for (size_t i = 0; i < have.size(); i++) guarded = guarded && ((i >= at && i < at + want.size()) || have[i] == static_cast<char>(0xa5));
    expect(same && guarded, "%s: %s %s, %d ranks in groups of %d, reduction %d, %zu elements, %dx%d%s: rank %d has %s", what, s.algorithm.c_str(),
           kTypeNames[s.type], g.world, s.reduceGroup, s.reduction, s.count, s.blocks, s.threads, s.inPlace ? ", in place" : "", r,
           same ? "written beyond its buffer" : "wrong bits");
    if (!same && failures < 5) {
      for (size_t i = 0; i < want.size(); i++) {
        if (have[at + i] == want[i]) continue;
        fprintf(stderr, "  first at byte %zu\n", i);
        break;
      }
    }
  }
}

struct Draw {
  std::mt19937_64 random;
  uint64_t below(uint64_t n) { return random() % n; }
};

Shape anyShape(Draw& draw, Image& image, const Group& g, size_t most) {
  constexpr const char* kAlgorithms[] = {"oneshot", "twoshot", "pull"};
  Shape s;
  s.algorithm = kAlgorithms[draw.below(3)];
  s.type = static_cast<int>(draw.below(kCpuTypes));
  s.reduction = draw.below(2) == 0 ? 0 : static_cast<int>(draw.below(kCpuReductions));
  s.reduceGroup = draw.below(2) == 0 ? 0 : 1 + static_cast<int>(draw.below(static_cast<uint64_t>(g.world)));
  s.count = draw.below(16) == 0 ? 0 : draw.below(2) == 0 ? draw.below(most) : draw.below(600);
  if (draw.below(2) == 0) s.count = s.count / 16 * 16;
  s.scale = cpuScale(s.type, draw.below(100000));
  s.sendAt = draw.below(2) == 0 ? 0 : draw.below(64);
  s.recvAt = draw.below(2) == 0 ? 0 : draw.below(64);
  s.inPlace = draw.below(3) == 0;
  s.general = draw.below(4) == 0;
  s.threads = 32 << draw.below(5);
  const int blocks = std::max(1, mostBlocks(kernelOf(image, g, s), s.threads, g.world));
  s.blocks = draw.below(4) == 0 ? 1 : 1 + static_cast<int>(draw.below(static_cast<uint64_t>(blocks)));
  return s;
}

void run(Image& image, const Group& g, const Shape& s) {
  for (int r = 0; r < g.world; r++) launch(image, g, r, s);
}

void expectCleared(const Group& g) {
  std::vector<uint64_t> inbox(g.layout.inboxBytes / 8);
  for (int r = 0; r < g.world; r++) {
    CHECK_CUDA(cudaMemcpy(inbox.data(), g.heap(r) + g.layout.inboxOffset, g.layout.inboxBytes, cudaMemcpyDeviceToHost));
    expect(std::all_of(inbox.begin(), inbox.end(), [](uint64_t e) { return e == ~uint64_t{0}; }), "rank %d of %d: cells that are not all ones", r, g.world);
  }
}

void setEpochs(const Group& g, uint32_t first) {
  for (int r = 0; r < g.world; r++) {
    CHECK_CUDA(cudaMemcpy(&g.state(r)->start.packetEpoch, &first, 4, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemcpy(&g.state(r)->start.flagEpoch, &first, 4, cudaMemcpyHostToDevice));
    std::vector<uint32_t> flags((g.layout.packetsOffset - g.layout.flagsOffset) / 4, first);
    CHECK_CUDA(cudaMemcpy(g.heap(r) + g.layout.flagsOffset, flags.data(), flags.size() * 4, cudaMemcpyHostToDevice));
  }
}

}  // namespace

void checkRandom(Image& image, int world, int rounds, uint64_t seed, size_t most) {
  Draw draw{std::mt19937_64(seed)};
  Group g = makeGroup(world, 16384);
  for (int n = 0; n < rounds; n++) {
    const Shape s = anyShape(draw, image, g, most);
    const auto in = contributions(g, s, draw.below(~uint64_t{0}));
    fill(g, s, in);
    run(image, g, s);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (hasStopped(g)) {
      expect(false, "round %d: %s %s, %zu elements, %dx%d", n, s.algorithm.c_str(), kTypeNames[s.type], s.count, s.blocks, s.threads);
      break;
    }
    compare(g, s, in, "random");
  }
  expectCleared(g);
  freeGroup(g);
  printf("checked: %d random all-reduces of %d ranks, bits of the CPU\n", rounds, world);
  fflush(stdout);
}

void checkReplays(Image& image, int world, int replays, uint64_t seed) {
  Draw draw{std::mt19937_64(seed)};
  Group g = makeGroup(world, 16384);
  setEpochs(g, 0xffffffffu - 40);
  std::vector<std::vector<Shape>> bodies(4);
  std::vector<cudaGraphExec_t> graphs;
  for (auto& body : bodies) {
    // The last operation reads what was filled in, and not what the others have written.
    for (int k = 0; k < 3; k++) body.push_back(anyShape(draw, image, g, 20000));
    for (Shape& s : body) {
      s.sendAt = s.recvAt = 0;
      s.inPlace = false;
    }
    graphs.push_back(capture(g, 1, [&](int r) {
      for (const Shape& s : body) launch(image, g, r, s);
    }));
  }
  int operations = 0;
  for (int n = 0; n < replays && failures == 0; n++) {
    const size_t which = draw.below(graphs.size());
    const Shape& last = bodies[which].back();
    const auto in = contributions(g, last, draw.below(~uint64_t{0}));
    fill(g, last, in);
    // Of the other operations of the body only the order matters: they write to the same recv before the last one.
    for (int again = 0; again < 2; again++) CHECK_CUDA(cudaGraphLaunch(graphs[which], g.streams[0]));
    CHECK_CUDA(cudaStreamSynchronize(g.streams[0]));
    if (hasStopped(g)) {
      expect(false, "replay %d", n);
      break;
    }
    std::vector<const char*> sends;
    for (const Rank& rank : in) sends.push_back(rank.data());
    Rank want(bytesOf(last)), have(bytesOf(last));
    cpuAllReduce(last.type, last.reduction, last.scale, sends.data(), world, last.reduceGroup == 0 ? world : last.reduceGroup, last.count, want.data());
    for (int r = 0; r < world; r++) {
      CHECK_CUDA(cudaMemcpy(have.data(), g.window(r, 1), have.size(), cudaMemcpyDeviceToHost));
      expect(have == want, "replay %d: rank %d has wrong bits", n, r);
    }
    const Shape eager = anyShape(draw, image, g, 20000);
    const auto in2 = contributions(g, eager, draw.below(~uint64_t{0}));
    fill(g, eager, in2);
    run(image, g, eager);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (hasStopped(g)) {
      expect(false, "eager call after replay %d", n);
      break;
    }
    compare(g, eager, in2, "eager, between replays");
    operations += 7;
  }
  // Replays back to back, without a look between them.
  for (int n = 0; n < 2000 && failures == 0; n++) CHECK_CUDA(cudaGraphLaunch(graphs[static_cast<size_t>(n) % graphs.size()], g.streams[0]));
  CHECK_CUDA(cudaDeviceSynchronize());
  expect(!hasStopped(g), "2000 replays back to back");
  expectCleared(g);
  GpuState state;
  CHECK_CUDA(cudaMemcpy(&state, g.state(0), sizeof state, cudaMemcpyDeviceToHost));
  expect(state.device.begun == static_cast<uint64_t>(operations) + 6000 || failures > 0, "%lu operations counted, %d played", state.device.begun, operations + 6000);
  expect(state.start.flagEpoch < 0x80000000u, "the flags did not wrap: %u", state.start.flagEpoch);
  for (cudaGraphExec_t graph : graphs) CHECK_CUDA(cudaGraphExecDestroy(graph));
  freeGroup(g);
  printf("checked: %d operations of %d ranks in replays and eager calls, over wraps; packets %u, flags %u\n", operations + 6000, world,
         state.start.packetEpoch, state.start.flagEpoch);
  fflush(stdout);
}

void checkValues(Image& image, int world, uint64_t seed) {
  Draw draw{std::mt19937_64(seed)};
  Group g = makeGroup(world, 65536);
  for (const char* algorithm : {"oneshot", "twoshot", "pull"}) {
    Shape s;
    s.algorithm = algorithm;
    s.count = 40000;
    s.blocks = 4;
    for (const int type : {0, 2, 9}) {  // f32, f64, i64
      s.type = type;
      std::vector<Rank> in(static_cast<size_t>(world), Rank(bytesOf(s)));
      for (Rank& rank : in) {
        for (size_t i = 0; i < s.count; i++) {
          const double v = static_cast<double>(static_cast<int64_t>(draw.below(2000001)) - 1000000) / 1000003.0;
          const float f = static_cast<float>(v);
          const int64_t n = static_cast<int64_t>(draw.below(~uint64_t{0}));
          if (type == 0) memcpy(&rank[i * 4], &f, 4);
          if (type == 2) memcpy(&rank[i * 8], &v, 8);
          if (type == 9) memcpy(&rank[i * 8], &n, 8);
        }
      }
      fill(g, s, in);
      run(image, g, s);
      CHECK_CUDA(cudaDeviceSynchronize());
      if (hasStopped(g)) exit(1);
      Rank have(bytesOf(s));
      long wrong = 0;
      for (int r = 0; r < world; r++) {
        CHECK_CUDA(cudaMemcpy(have.data(), g.window(r, 1), have.size(), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < s.count; i++) {
          long double exact = 0, magnitude = 0, got = 0;
          uint64_t total = 0, bits = 0;
          for (const Rank& rank : in) {
            float f = 0;
            double v = 0;
            uint64_t n = 0;
            if (type == 0) memcpy(&f, &rank[i * 4], 4), v = f;
            if (type == 2) memcpy(&v, &rank[i * 8], 8);
            if (type == 9) memcpy(&n, &rank[i * 8], 8);
            exact += v;
            magnitude += fabs(v);
            total += n;
          }
          float f = 0;
          double v = 0;
          if (type == 0) memcpy(&f, &have[i * 4], 4), got = f;
          if (type == 2) memcpy(&v, &have[i * 8], 8), got = v;
          if (type == 9) memcpy(&bits, &have[i * 8], 8);
          const long double bound = magnitude * world * (type == 0 ? 0x1p-24L : 0x1p-53L);
          wrong += type == 9 ? bits != total : fabsl(got - exact) > bound;
        }
      }
      expect(wrong == 0, "%s %s of %d ranks: %ld sums are not those of fp64 or of integers", algorithm, kTypeNames[type], world, wrong);
    }
  }
  freeGroup(g);
  printf("checked: sums of %d ranks against fp64 and integers\n", world);
  fflush(stdout);
}

void checkStops(Image& image, int world) {
  int checks = 0;
  for (const char* algorithm : {"oneshot", "twoshot", "pull"}) {
    for (const int type : {1, 8}) {
      for (int what = 0; what < 7; what++) {
        Group g = makeGroup(world, 16384);
        // Loaded now: at its first launch a kernel would wait for those that run.
        for (const char* a : {"oneshot", "twoshot"}) load(image.kernel(a, type, world));
        Shape s;
        s.algorithm = algorithm;
        s.type = type;
        s.count = 5000;
        s.blocks = 3;
        s.threads = checks % 4 == 3 ? 32 : 128;
        if (s.threads == 32) s.blocks = 1 + checks % 2;
        const bool absent = what < 2;
        g.timeoutNs = what == 0 || what == 5 ? 30000000 : 10000000000;
        const int last = world - 1;
        const uint32_t other = 7, one = 1;
        if (what == 5) CHECK_CUDA(cudaMemcpy(&g.state(last)->device.holder, &other, 4, cudaMemcpyHostToDevice));
        if (what == 6) CHECK_CUDA(cudaMemcpy(&g.state(0)->device.left, &one, 4, cudaMemcpyHostToDevice));
        for (int again = 0; again < 2; again++) {  // the later kernel returns at once
          for (int r = 0; r < world; r++) {
            if (what == 6 ? r != 0 : absent && r == last) continue;
            Shape mine = s;
            if (r == last && what == 2) mine.count = 4000;
            if (r == last && what == 3) mine.algorithm = s.algorithm == "oneshot" ? "twoshot" : "oneshot";
            if (r == last && what == 4) mine.detail = 1;
            launch(image, g, r, mine);
          }
        }
        if (what == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3));
          expect(cudaStreamQuery(g.streams[0]) == cudaErrorNotReady, "it does not wait");
          for (int r = 0; r < world; r++) {
            for (auto& line : g.status[r].abort) __atomic_store_n(&line.word, 1, __ATOMIC_RELAXED);
          }
        }
        CHECK_CUDA(cudaDeviceSynchronize());
        constexpr Stop kWhy[] = {Stop::kTimeout, Stop::kAborted, Stop::kMismatch, Stop::kMismatch, Stop::kMismatch, Stop::kAborted, Stop::kNone};
        for (int r = 0; r < world; r++) {
          if (absent && r == last) continue;
          const Status& status = g.status[r];
          if (what == 5 && r != last) {  // its peers stop too: at the deadline, or not at all if they have what they need
            continue;
          }
          const uint64_t missing = what >= 5 ? 0 : r == last ? status.missing : uint64_t{1} << last;
          const bool first = status.number == (what == 6 ? 0 : 1);
          expect(status.stop == static_cast<uint32_t>(kWhy[what]) && status.missing == missing && (what != 5 || status.clash == (uint64_t{1} << 32 | 7)) && first,
                 "stop %d of %s %s, %dx%d: rank %d stopped with %u, missing %#lx, clash %#lx, operation %lu", what, algorithm, kTypeNames[type], s.blocks,
                 s.threads, r, status.stop, status.missing, status.clash, status.number);
          if (what == 2 && r != last) expect(status.difference.theirs.count == 4000 && status.difference.ours.count == 5000, "the calls of a mismatch are wrong");
          if (what == 4 && r != last) expect(status.theirWay != status.ourWay, "the ways of a mismatch are wrong");
        }
        freeGroup(g);
        checks++;
      }
    }
  }
  printf("checked: %d stops of %d ranks: missing rank, abort, mismatches, two streams, a rank that has left\n", checks, world);
  fflush(stdout);
}

}  // namespace virtual_ranks
