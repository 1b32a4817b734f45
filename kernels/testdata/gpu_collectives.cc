// The GPU kernels of the operations other than all-reduce, as functions of the host (gpu_group.h).
//
//   gpu_collectives run WORLD FIRST ROUNDS SEED   random operations, types, counts and addresses, against the CPU's bits; FIRST: the epoch of
//                                                 packets and flags
//   gpu_collectives stop WORLD                    a missing rank, an abort, other roots and counts
//
// On a GPU, where $CUDA is the toolkit; all blocks of up to eight ranks run at once on 132 multiprocessors:
//
//   g++ -std=c++17 -O1 -DRH_ON_DEVICE -Ikernels -Ikernels/include -I$CUDA/include kernels/testdata/gpu_collectives.cc kernels/testdata/cpu_bits.cc
//       -lcuda -lpthread -o gpu_collectives
//   RAILHEAD_TEST_CUBIN=kernels/cubin/kernels.sm_90.cubin ./gpu_collectives run 8 0 300 1
#include <stdio.h>
#include <stdlib.h>

#include <chrono>
#include <string>

#include "cpu_bits.h"
#include "gpu_group.h"

namespace {

// Operations by rhw_op.
constexpr uint32_t kAllReduce = 2, kBarrier = 3, kAllGather = 7, kReduceScatter = 8, kAllToAll = 9, kBroadcast = 10, kReduce = 11, kGather = 12,
                   kScatter = 13, kGroup = 16;

struct Kind {
  const char* name;  // of the entry point, without a type
  uint32_t op;
  bool sendsParts, receivesParts;  // a part for each rank; else one
  bool reduces, needsOffsets;
  bool isRooted = false, overLanes = false;
};
constexpr Kind kKinds[] = {
    {"barrier_none", kBarrier, false, false, false, false},
    {"all_gather_oneshot", kAllGather, false, true, false, false},
    {"all_gather_pull", kAllGather, false, true, false, true},
    {"all_to_all_oneshot", kAllToAll, true, true, false, false},
    {"all_to_all_pull", kAllToAll, true, true, false, true},
    {"broadcast_oneshot", kBroadcast, false, false, false, false, true},
    {"broadcast_pull", kBroadcast, false, false, false, true, true},
    {"reduce_scatter_oneshot", kReduceScatter, true, false, true, false},
    {"reduce_scatter_pull", kReduceScatter, true, false, true, true},
    {"all_gather_pipe", kAllGather, false, true, false, false, false, true},
    {"all_to_all_pipe", kAllToAll, true, true, false, false, false, true},
    {"broadcast_pipe", kBroadcast, false, false, false, false, true, true},
    {"reduce_pipe", kReduce, false, false, true, false, true, true},
    {"gather_pipe", kGather, false, true, false, false, true, true},
    {"scatter_pipe", kScatter, true, false, false, false, true, true},
    {"all_reduce_oneshot", kAllReduce, false, false, true, false},  // between the others: they share counters and inboxes
};

struct Round {
  Kind kind;
  std::string name;
  int type, reduction, group, root;
  uint32_t lanes;
  TestGrid grid;
  size_t count;  // elements of a part
  uint64_t part;
  uint64_t scale, sendAt, recvAt;  // offsets in the windows
  bool inPlace;
};

Round draw(uint64_t random, int world) {
  const auto below = [&](uint64_t n) { return (random = mix(random + 1)) % n; };
  Round round = {};
  round.kind = kKinds[below(sizeof kKinds / sizeof *kKinds)];
  round.type = round.kind.reduces ? static_cast<int>(below(kCpuTypes)) : 7;
  round.reduction = below(2) == 0 ? 0 : static_cast<int>(below(kCpuReductions));
  round.group = below(2) == 0 ? world : 1 + static_cast<int>(below(static_cast<uint64_t>(world)));
  round.root = static_cast<int>(below(static_cast<uint64_t>(world)));
  round.lanes = round.kind.overLanes ? 1 + static_cast<uint32_t>(below(below(2) == 0 ? 3 : 64)) : 0;
  if (round.lanes * 2 * static_cast<uint32_t>(world - 1) > static_cast<uint32_t>(kMaxUnits)) round.lanes = 1;
  // All blocks of eight ranks are resident on a GPU at once.
  round.grid = {1 + static_cast<uint32_t>(below(below(2) == 0 ? 2 : 16)), 32u << below(4)};
  if (round.kind.op == kBarrier) round.grid = {1, 32};
  const uint64_t bytes = cpuTypeBytes(round.type), most = (kWindowBytes - 64) / static_cast<uint64_t>(world) / bytes;
  round.count = below(8) == 0 ? 0 : below(2) == 0 ? below(most) : below(most < 300 ? most : 300);
  if (below(2) == 0) round.count = round.count / 16 * 16;
  if (round.kind.op == kBarrier) round.count = 0;
  round.part = round.count * bytes;
  round.sendAt = below(2) == 0 ? 0 : below(64);
  round.recvAt = below(2) == 0 ? 0 : below(64);
  round.inPlace = below(3) == 0 && !(round.kind.op == kAllToAll && round.kind.needsOffsets);
  round.scale = cpuScale(round.type, random);
  round.name = std::string("rh_") + round.kind.name + "_" + (round.kind.reduces ? kTypeNames[round.type] : "bytes");
  const std::string special = round.name + "_" + std::to_string(world);
  if (below(4) != 0 && hasKernel(special)) round.name = special;
  return round;
}

using Bytes = std::vector<char, SharedAllocator<char>>;

// What rank r must receive.
Bytes expected(const Round& round, const std::vector<Bytes>& sends, int r) {
  const size_t world = sends.size(), part = round.part, self = static_cast<size_t>(r);
  const uint32_t op = round.kind.op;
  if ((op == kReduce || op == kGather) && r != round.root) return {};
  Bytes want(round.kind.receivesParts ? part * world : part);
  const auto copy = [&](size_t to, const Bytes& from, size_t at) {
    if (part > 0) memcpy(&want[to], &from[at], part);
  };
  if (round.kind.reduces) {
    std::vector<const char*> parts;
    for (const Bytes& s : sends) parts.push_back(s.data() + (round.kind.sendsParts ? self * part : 0));
    cpuAllReduce(round.type, round.reduction, round.scale, parts.data(), static_cast<int>(world), round.group, round.count, want.data());
    return want;
  }
  for (size_t q = 0; q < world; q++) {
    if (op == kAllGather || op == kGather) copy(q * part, sends[q], 0);
    if (op == kAllToAll) copy(q * part, sends[q], self * part);
  }
  if (op == kBroadcast) copy(0, sends[static_cast<size_t>(round.root)], 0);
  if (op == kScatter) copy(0, sends[static_cast<size_t>(round.root)], self * part);
  return want;
}

// Where send and recv are in a rank's device heap.
struct Places {
  uint64_t send, recv;
};
Places placesOf(const Group& group, const Round& round, int r) {
  const uint64_t first = group.layout.bytes + round.sendAt, second = group.layout.bytes + kWindowBytes + round.recvAt;
  if (!round.inPlace) return {first, second};
  const uint64_t own = static_cast<uint64_t>(r) * round.part;
  if (round.kind.receivesParts && !round.kind.sendsParts) return {first + own, first};
  if (round.kind.sendsParts && !round.kind.receivesParts) return {first, first + own};
  return {first, first};
}

// The same of the buffers that other ranks access, which is the same on all ranks; 0 for the others.
Places sharedPlaces(const Group& group, const Round& round, int r) {
  const Places at = placesOf(group, round, r);
  return {round.kind.sendsParts ? at.send : 0, round.kind.sendsParts && !round.kind.receivesParts ? 0 : at.recv};
}

WindowCall callOf(Group& group, const Round& round, int r, uint64_t timeoutNs = 30000000000) {
  const Places at = placesOf(group, round, r);
  Call c = group.call(r, timeoutNs);
  c.team.reduceGroup = round.group;
  const Places shared = sharedPlaces(group, round, r);
  c.detail = round.kind.overLanes ? round.lanes : shared.send ^ shared.recv << 20;
  c.send = group.heap(r) + at.send;
  c.recv = group.heap(r) + at.recv;
  c.count = round.kind.reduces ? round.count : round.part;
  c.call.operation = round.kind.op;
  c.call.count = round.count;
  c.call.dtype = static_cast<uint32_t>(round.type);
  c.call.reduction = c.reduction = static_cast<uint32_t>(round.reduction);
  c.call.root = round.kind.isRooted ? static_cast<uint32_t>(round.root) : kNoRoot;
  c.root = round.kind.isRooted ? round.root : -1;
  c.scale = round.scale;
  return group.inWindows(c, shared.send, shared.recv);
}

void checkRank(const Group& group, const Round& round, const std::vector<Bytes>& sends, int r, int n) {
  const Places at = placesOf(group, round, r);
  const Bytes want = expected(round, sends, r), &sent = sends[static_cast<size_t>(r)];
  const char *out = group.heap(r) + at.recv, *in = group.heap(r) + at.send;
  if (!want.empty() && memcmp(out, want.data(), want.size()) != 0) {
    fprintf(stderr, "round %d, rank %d of %d: %s, reduction %d, group %d, root %d, %zu elements, in place %d\n", n, r, group.world, round.name.c_str(),
            round.reduction, round.group, round.root, round.count, round.inPlace);
    CHECK(!"wrong bits");
  }
  // Nothing else was written: neither send nor what surrounds both.
  for (const char* p = group.window(r, 0); p < group.window(r, 0) + 2 * kWindowBytes; p++) {
    if (p >= out && p < out + want.size()) continue;
    const bool isSend = p >= in && p < in + sent.size();
    CHECK(*p == (isSend ? sent[static_cast<size_t>(p - in)] : static_cast<char>(0xa5)));
  }
}

void play(Group& group, const Round& round, uint64_t seed, int n) {
  const size_t world = static_cast<size_t>(group.world);
  std::vector<Bytes> sends(world, Bytes(round.kind.sendsParts ? round.part * world : round.part));
  for (size_t r = 0; r < world; r++) {
    fillWithEveryValue(round.type, mix(seed + r), sends[r].data(), sends[r].size() / cpuTypeBytes(round.type));
    const auto rank = static_cast<int>(r);
    memset(group.window(rank, 0), 0xa5, 2 * kWindowBytes);
    if (!sends[r].empty()) memcpy(group.heap(rank) + placesOf(group, round, rank).send, sends[r].data(), sends[r].size());
  }
  onRanks(group.world, [&](int r) {
    WindowCall c = callOf(group, round, r);
    launch(r, round.name, &c.call, round.grid);
  });
  for (int r = 0; r < group.world; r++) {
    const Status& s = group.status[static_cast<size_t>(r)];
    if (s.stop != 0) fprintf(stderr, "round %d, %s: rank %d stopped with %u, missing %#lx\n", n, round.name.c_str(), r, s.stop, s.missing);
    CHECK(s.stop == 0);
    checkRank(group, round, sends, r, n);
  }
}

struct Sent {
  int from, to;
  uint32_t dtype, lanes;
  Bytes data, received;
};

// Random sends and receives between all ranks, each rank's in one kernel. A rank without any calls nothing. Returns which have called.
uint64_t playGroup(Group& group, uint64_t random, int n) {
  const auto below = [&](uint64_t most) { return (random = mix(random + 1)) % most; };
  const auto lanesOf = [&] { return 1 + static_cast<uint32_t>(below(group.world <= 3 ? 16 : group.world <= 16 ? 3 : 1)); };
  std::vector<Sent> sent;
  for (int from = 0; from < group.world; from++) {
    for (int to = 0; to < group.world; to++) {
      for (uint64_t k = from == to || below(3) == 0 ? 0 : 1 + below(group.world <= 16 ? 2 : 1); k > 0; k--) {
        const auto type = static_cast<int>(below(kCpuTypes));
        const uint64_t count = below(6) == 0 ? 0 : below(below(2) == 0 ? 100 : 8000);
        sent.push_back({from, to, static_cast<uint32_t>(type), lanesOf(), Bytes(count * cpuTypeBytes(type)), {}});
        fillWithEveryValue(7, random, sent.back().data.data(), sent.back().data.size());
        sent.back().received.assign(sent.back().data.size() + 64, static_cast<char>(0xa5));
      }
    }
  }
  uint64_t called = 0;
  std::vector<GroupCall> calls(static_cast<size_t>(group.world));
  for (int r = 0; r < group.world; r++) {
    GroupCall& c = calls[static_cast<size_t>(r)];
    memset(static_cast<void*>(&c), 0, sizeof c);
    c.call = group.call(r);
    c.call.call.operation = kGroup;
    const int start = static_cast<int>(below(static_cast<uint64_t>(2 * group.world)));
    for (int k = 0; k < 2 * group.world; k++) {  // pipes in any order
      const int pipe = (start + k) % (2 * group.world), peer = pipe / 2;
      uint32_t most = 0;
      for (Sent& s : sent) {
        const bool sends = s.from == r && s.to == peer && pipe % 2 == 0, receives = s.to == r && s.from == peer && pipe % 2 == 1;
        if (!sends && !receives) continue;
        CHECK(c.transfers < kMaxTransfers);
        char* buffer = sends ? s.data.data() : s.received.data() + 32;
        c.list[c.transfers++] = {buffer, s.data.size(), static_cast<uint8_t>(peer), sends, static_cast<uint8_t>(s.dtype), static_cast<uint8_t>(s.lanes),
                                 static_cast<uint16_t>(c.units), 0};
        if (s.lanes > most) most = s.lanes;
      }
      c.units += most;
    }
    CHECK(c.units <= kMaxUnits);
    if (c.transfers > 0) called |= uint64_t{1} << r;
  }
  onRanks(group.world, [&](int r) {
    if ((called >> r & 1) != 0) launch(r, "rh_group_pipe_bytes", &calls[static_cast<size_t>(r)].call, {1 + static_cast<uint32_t>(mix(random + static_cast<uint64_t>(r)) % 8), 64});
  });
  for (const Sent& s : sent) {
    const Bytes guard(32, static_cast<char>(0xa5));
    CHECK(memcmp(s.received.data(), guard.data(), 32) == 0 && memcmp(&s.received[s.received.size() - 32], guard.data(), 32) == 0);
    if (s.data.empty() || memcmp(&s.received[32], s.data.data(), s.data.size()) == 0) continue;
    fprintf(stderr, "round %d: %zu bytes from rank %d to %d of %d are wrong\n", n, s.data.size(), s.from, s.to, group.world);
    CHECK(!"wrong bytes");
  }
  return called;
}

void stops(int world) {
  const uint64_t last = uint64_t{1} << (world - 1);
  for (const Kind& kind : kKinds) {
    Round round = {};
    round.kind = kind;
    round.type = kind.reduces ? 0 : 7;
    round.group = world;
    round.count = kind.op == kBarrier ? 0 : 64;
    round.part = round.count * cpuTypeBytes(round.type);
    round.lanes = 2;
    const std::string name = std::string("rh_") + kind.name + "_" + (kind.reduces ? "f32" : "bytes");
    const auto isReport = [&](const Status& s, Stop why, uint64_t missing) {
      if (s.stop == 0 && why == Stop::kNone) return true;
      return s.stop == static_cast<uint32_t>(why) && (s.missing & missing) == missing && s.operation == kind.op;
    };
    const auto stopped = [&](const Group& group, int r, Stop why, uint64_t missing) {
      const Status& s = group.status[static_cast<size_t>(r)];
      if (!isReport(s, why, missing)) {
        fprintf(stderr, "%s: rank %d stopped with %u in %u, missing %#lx, expected %u\n", name.c_str(), r, s.stop, s.operation, s.missing, static_cast<uint32_t>(why));
        CHECK(!"wrong report");
      }
    };
    // The root of a broadcast or scatter over lanes waits for nobody, nor do those who send in a gather or a reduce.
    const bool gathers = kind.op == kGather || kind.op == kReduce;
    round.root = kind.isRooted && kind.overLanes && !gathers ? world - 1 : 0;
    const auto waits = [&](int r) { return !gathers || r == round.root; };
    // The last rank does not come. On a busy machine others may be late too, and be named in its place: then again, with a longer deadline.
    constexpr uint64_t kLongestNs = 2000000000;
    bool right = false;
    for (uint64_t timeoutNs = 20000000; !right; timeoutNs *= 10) {
      Group group(world);
      onRanks(world - 1, [&](int r) {
        WindowCall w = callOf(group, round, r, timeoutNs);
        launch(r, name, &w.call, {2, 64});
      });
      right = true;
      for (int r = 0; r < world - 1; r++) {
        const Stop why = waits(r) ? Stop::kTimeout : Stop::kNone;
        right = right && isReport(group.status[static_cast<size_t>(r)], why, last);
        if (timeoutNs >= kLongestNs) stopped(group, r, why, last);
      }
    }
    {
      Group group(world);  // the same, and the host aborts
      std::thread host([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        for (Status& s : group.status) {
          for (auto& line : s.abort) __atomic_store_n(&line.word, 1, __ATOMIC_RELAXED);
        }
      });
      onRanks(world - 1, [&](int r) {
        WindowCall w = callOf(group, round, r, 60000000000);
        launch(r, name, &w.call, {2, 64});
      });
      host.join();
      // Over lanes a rank waits for one other at a time, which may be one that is late.
      for (int r = 0; r < world - 1; r++) stopped(group, r, waits(r) ? Stop::kAborted : Stop::kNone, kind.overLanes ? 0 : last);
    }
    for (int what = 0; what < 3; what++) {  // the last rank calls something else
      if (what == 1 && (kind.op != kBroadcast || kind.overLanes)) continue;
      Group group(world);
      onRanks(world, [&](int r) {
        WindowCall w = callOf(group, round, r, 10000000000);
        Call& c = w.call;
        const bool odd = r == world - 1;
        if (odd && what == 0) c.call.count++;
        if (odd && what == 1) c.call.root = static_cast<uint32_t>(c.root = world - 1);
        if (odd && what == 2 && kind.overLanes) c.detail++;
        launch(r, name, &c, {odd && what == 2 ? 3u : 2u, 64});
      });
      bool found = false;
      for (int r = 0; r < world; r++) {
        const uint32_t s = group.status[static_cast<size_t>(r)].stop;
        CHECK(s == 0 || s == static_cast<uint32_t>(Stop::kMismatch));
        found = found || s != 0;
        // Of a rooted operation over lanes only those that receive from the odd one, or it from them, see it.
        if (!kind.isRooted || !kind.overLanes) stopped(group, r, Stop::kMismatch, 0);
      }
      CHECK(found);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 3);
  const std::string what = argv[1];
  const int world = atoi(argv[2]);
  if (what == "stop") {
    stops(world);
    return 0;
  }
  CHECK(what == "run" && argc == 6);
  const auto first = static_cast<uint32_t>(strtoul(argv[3], nullptr, 0));
  Group group(world, first);
  const int rounds = atoi(argv[4]);
  const uint64_t seed = strtoull(argv[5], nullptr, 0);
  std::vector<uint64_t> begun(static_cast<size_t>(world));
  uint64_t collectives = 0;
  for (int n = 0; n < rounds; n++) {
    const uint64_t random = mix(seed + static_cast<uint64_t>(n));
    uint64_t called = ~uint64_t{0};
    const bool isGroup = random % 5 == 0;
    if (isGroup) {
      called = playGroup(group, random, n);
    } else {
      play(group, draw(random, world), random, n);
      collectives++;
    }
    for (int r = 0; r < world; r++) {
      CHECK(group.status[static_cast<size_t>(r)].stop == 0);
      begun[static_cast<size_t>(r)] += called >> r & 1;
      CHECK(group.state(r)->device.begun == begun[static_cast<size_t>(r)] && group.state(r)->device.collectives == collectives);
      CHECK(group.state(r)->device.history == group.state(0)->device.history);
    }
  }
  printf("epochs %u to %u\n", first, group.state(0)->start.packetEpoch);
  return 0;
}
