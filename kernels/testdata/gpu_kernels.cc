// The GPU kernels as functions of the host: ranks are threads of this process, each with a device heap in one range of memory.
//
//   gpu_kernels run WORLD FIRST ROUNDS SEED   random all-reduces of all types, against the CPU's bits; FIRST: the epoch of packets and flags
//   gpu_kernels stop WORLD SEED               a missing rank, an abort, mismatches, two streams, a rank that has left
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu_bits.h"
#include "gpu_group.h"

using namespace railhead;
using namespace railhead::gpu;

namespace {

struct Round {
  int type, reduction, group;
  const char* algorithm;
  size_t count;
  uint64_t scale, sendAt, recvAt;  // offsets in the windows
  bool inPlace;
  std::string name;
};

Round draw(uint64_t random, int world) {
  const auto below = [&](uint64_t n) { return (random = mix(random + 1)) % n; };
  constexpr const char* kAlgorithms[] = {"oneshot", "twoshot", "pull"};
  Round round = {};
  round.type = static_cast<int>(below(kCpuTypes));
  round.reduction = below(2) == 0 ? 0 : static_cast<int>(below(kCpuReductions));
  round.group = below(2) == 0 ? world : 1 + static_cast<int>(below(static_cast<uint64_t>(world)));
  round.algorithm = kAlgorithms[below(3)];
  const uint64_t most = kWindowBytes / 8 / 2;
  round.count = below(8) == 0 ? 0 : below(2) == 0 ? below(most) : below(300);
  if (below(2) == 0) round.count = round.count / 16 * 16;
  round.sendAt = below(2) == 0 ? 0 : below(64);
  round.recvAt = below(2) == 0 ? 0 : below(64);
  round.inPlace = below(3) == 0;
  round.scale = cpuScale(round.type, random);
  round.name = std::string("rh_all_reduce_") + round.algorithm + "_" + kTypeNames[round.type];
  const std::string special = round.name + "_" + std::to_string(world);
  if (below(4) != 0 && hasKernel(special)) round.name = special;
  return round;
}

void play(Group& group, const Round& round, uint64_t seed, int n) {
  const size_t bytes = round.count * cpuTypeBytes(round.type), world = static_cast<size_t>(group.world);
  std::vector<std::vector<char>> sends(world, std::vector<char>(bytes));
  std::vector<const char*> pointers;
  for (size_t r = 0; r < world; r++) {
    fillWithEveryValue(round.type, mix(seed + r), sends[r].data(), round.count);
    pointers.push_back(sends[r].data());
  }
  std::vector<char> want(bytes);
  cpuAllReduce(round.type, round.reduction, round.scale, pointers.data(), group.world, round.group, round.count, want.data());
  for (int r = 0; r < group.world; r++) {
    memset(group.window(r, 0), 0xa5, 2 * kWindowBytes);
    if (bytes > 0) memcpy(group.window(r, 0) + round.sendAt, sends[static_cast<size_t>(r)].data(), bytes);
  }
  onRanks(group.world, [&](int r) {
    Call c = group.call(r);
    c.team.reduceGroup = round.group;
    const uint64_t send = group.layout.bytes + round.sendAt, recv = round.inPlace ? send : group.layout.bytes + kWindowBytes + round.recvAt;
    c.detail = send ^ recv << 20;
    c.send = group.heap(r) + send;
    c.recv = group.heap(r) + recv;
    c.count = c.call.count = round.count;
    c.call.dtype = static_cast<uint32_t>(round.type);
    c.call.reduction = c.reduction = static_cast<uint32_t>(round.reduction);
    c.scale = round.scale;
    WindowCall w = group.inWindows(c, send, recv);
    launch(r, round.name, &w.call, {1, 32});
  });
  for (int r = 0; r < group.world; r++) {
    const Status& s = group.status[static_cast<size_t>(r)];
    if (s.stop != 0) fprintf(stderr, "round %d, %s: rank %d stopped with %u, missing %#lx\n", n, round.name.c_str(), r, s.stop, s.missing);
    CHECK(s.stop == 0 && group.state(r)->device.begun == static_cast<uint64_t>(n) + 1);
    const char* out = round.inPlace ? group.window(r, 0) + round.sendAt : group.window(r, 1) + round.recvAt;
    if (bytes > 0 && memcmp(out, want.data(), bytes) != 0) {
      fprintf(stderr, "round %d, rank %d of %d: %s, reduction %d, group %d, %zu elements\n", n, r, group.world, round.name.c_str(), round.reduction,
              round.group, round.count);
      CHECK(!"wrong bits");
    }
    const char* window = round.inPlace ? group.window(r, 0) : group.window(r, 1);
    for (const char* p = window; p < window + kWindowBytes; p++) CHECK((p >= out && p < out + bytes) || *p == static_cast<char>(0xa5));
    // Cells are all ones between kernels.
    for (uint64_t i = 0; i < group.layout.inboxBytes; i += 8) {
      uint64_t element;
      memcpy(&element, group.heap(r) + group.layout.inboxOffset + i, 8);
      CHECK(element == ~uint64_t{0});
    }
  }
}

void stopped(const Group& group, int r, Stop why, uint64_t missing) {
  const Status& s = group.status[static_cast<size_t>(r)];
  if (s.stop != static_cast<uint32_t>(why) || s.missing != missing || s.operation != 2) {
    fprintf(stderr, "rank %d stopped with %u, missing %#lx, instead of %u, %#lx\n", r, s.stop, s.missing, static_cast<uint32_t>(why), missing);
    CHECK(!"wrong report");
  }
}

// The ranks' device heaps without their own counts.
std::vector<std::vector<char>> memoryOf(const Group& group) {
  std::vector<std::vector<char>> all;
  for (int r = 0; r < group.world; r++) all.emplace_back(group.heap(r) + sizeof(GpuState), group.heap(r) + group.stride);
  return all;
}

// The same type with another algorithm.
std::string other(const std::string& name) {
  const std::string type = name.substr(name.find('_', 14));
  return name.substr(0, 14) + (name.compare(14, 7, "oneshot") == 0 ? "twoshot" : "oneshot") + type;
}

void stops(int world, uint64_t seed) {
  const std::vector<std::string> names = {"rh_all_reduce_oneshot_bf16", "rh_all_reduce_twoshot_f32", "rh_all_reduce_twoshot_u8", "rh_all_reduce_pull_f16", "rh_all_reduce_oneshot_i32"};
  const uint64_t last = uint64_t{1} << (world - 1);
  const auto run = [](const std::string& name, WindowCall& w, uint32_t blocks = 4) { launch(w.call.team.rank, name, &w.call, {blocks, 128}); };
  const auto prepared = [&](Group& group, int r, uint64_t timeoutNs) {
    Call c = group.call(r, timeoutNs);
    c.send = group.window(r, 0);
    c.recv = group.window(r, 1);
    c.count = c.call.count = 100;
    return group.inWindows(c, group.layout.bytes, group.layout.bytes + kWindowBytes);
  };
  for (const std::string& name : names) {
    {
      Group group(world);  // the last rank does not come; a later kernel returns at once, and stores nothing
      onRanks(world - 1, [&](int r) {
        WindowCall w = prepared(group, r, 200000000);  // the other ranks come by then on a busy machine too
        run(name, w);
      });
      const std::vector<std::vector<char>> before = memoryOf(group);
      onRanks(world - 1, [&](int r) {
        WindowCall w = prepared(group, r, 200000000);
        w.call.count = w.call.call.count = 50;  // what it would store differs from what the first one has stored
        run(name, w);
      });
      CHECK(memoryOf(group) == before);
      for (int r = 0; r < world - 1; r++) {
        stopped(group, r, Stop::kTimeout, last);
        CHECK(group.state(r)->device.begun == 0 && group.status[static_cast<size_t>(r)].number == 1);
      }
    }
    {
      Group group(world);  // the same, and the host aborts
      std::thread host([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        for (Status& s : group.status) __atomic_store_n(&s.abort[0].word, 1, __ATOMIC_RELAXED);
      });
      onRanks(world - 1, [&](int r) {
        WindowCall w = prepared(group, r, 60000000000);
        run(name, w);
        const Status& s = group.status[static_cast<size_t>(r)];
        CHECK(s.stop == static_cast<uint32_t>(Stop::kAborted) && (s.missing & last) != 0);  // others may not have come yet either
      });
      host.join();
    }
    for (int what = 0; what < 6; what++) {  // the last rank calls something else
      Group group(world);
      onRanks(world, [&](int r) {
        const bool odd = r == world - 1;
        WindowCall w = prepared(group, r, 10000000000);
        Call& c = w.call;
        std::string called = name;
        if (odd && what == 0) c.count = c.call.count = 103 + seed % 500;
        if (odd && what == 1) c.call.reduction = c.reduction = 3;
        if (odd && what == 2) called = other(name);
        if (odd && what == 3) c.detail = 1;
        if (odd && what == 4) c.call.captured = 7;
        run(called, w, odd && what == 5 ? 5 : 4);
        const Status& s = group.status[static_cast<size_t>(r)];
        if (s.stop != static_cast<uint32_t>(Stop::kMismatch)) fprintf(stderr, "%s, difference %d: rank %d stopped with %u\n", called.c_str(), what, r, s.stop);
        CHECK(s.stop == static_cast<uint32_t>(Stop::kMismatch) && (s.missing & (s.missing - 1)) == 0 && s.missing != 0);
        CHECK(odd || s.missing == last || world > 2);
        // The accountant may have heard from all of its ranks; the kernel has ended for none.
        CHECK(group.state(r)->lines == 0);
        if (!odd && s.missing == last) {
          CHECK(s.difference.theirs.count == (what == 0 ? 103 + seed % 500 : 100) && s.difference.ours.count == 100);
          CHECK(s.theirWay != s.ourWay || what == 0 || what == 1 || what == 4);
        }
      });
    }
    {
      Group group(world);  // another stream holds the comm
      onRanks(world, [&](int r) {
        group.state(r)->device.holder = 5;
        WindowCall w = prepared(group, r, 10000000000);
        run(name, w);
        CHECK(group.status[static_cast<size_t>(r)].stop == static_cast<uint32_t>(Stop::kAborted));
        CHECK(group.status[static_cast<size_t>(r)].clash == (uint64_t{1} << 32 | 5));
        CHECK(group.state(r)->device.begun == 0 && group.state(r)->device.holder == 5);  // it does not count
      });
    }
    {
      Group group(world);  // the rank has left
      group.state(0)->device.left = 1;
      WindowCall w = prepared(group, 0, 10000000000);
      run(name, w);
      CHECK(group.status[0].stop == 0 && group.state(0)->device.begun == 0);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 4);
  const std::string what = argv[1];
  const int world = atoi(argv[2]);
  if (what == "stop") {
    stops(world, strtoull(argv[3], nullptr, 0));
    return 0;
  }
  CHECK(what == "run" && argc == 6);
  const auto first = static_cast<uint32_t>(strtoul(argv[3], nullptr, 0));
  Group group(world, first);
  const int rounds = atoi(argv[4]);
  const uint64_t seed = strtoull(argv[5], nullptr, 0);
  for (int n = 0; n < rounds; n++) {
    const uint64_t random = mix(seed + static_cast<uint64_t>(n));
    play(group, draw(random, world), random, n);
  }
  printf("epochs %u to %u\n", first, group.state(0)->start.packetEpoch);
  return 0;
}
