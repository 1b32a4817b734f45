// The kernels of operations over lanes: send, receive and groups of them; broadcast, gather, scatter and reduce, whose root may end before other
// ranks have called; large all-gathers and all-to-alls, whose data is then sent once.
#ifndef RAILHEAD_KERNELS_GPU_PIPES_H_
#define RAILHEAD_KERNELS_GPU_PIPES_H_

#include "railhead/base/fold.h"
#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/cells.h"
#include "railhead/exchange/lanes.h"
#include "railhead/exchange/packets.h"
#include "railhead/gpu/all_reduce.h"
#include "railhead/gpu/context.h"
#include "railhead/gpu/control.h"
#include "railhead/gpu/elements.h"
#include "railhead/gpu/transfers.h"

namespace railhead::gpu {

// What both ranks of a lane must agree on besides the signature. Their grids may differ.
RH_FN Way wayOfLanes(const Team& team, uint32_t lanes) {
  return static_cast<Way>(Algorithm::kPipe) | kWithoutLines | Way{lanes} << 8 | Way{static_cast<uint32_t>(team.reduceGroup)} << 32;
}

// Loads tiles as they are.
struct LoadBytes {
  RH_FN Raw16 operator()(const char* p, uint64_t i, uint64_t n) const { return Bytes::load(p, i, n); }
};
// Loads tiles of a reduction's elements as the rank contributes them.
template <class Elements>
struct LoadElements {
  const Elements& e;
  RH_FN Raw16 operator()(const char* p, uint64_t i, uint64_t n) const { return e.load(p, i, static_cast<size_t>(n / Elements::kBytes)); }
};

// Transfers of a call with parts: sends to, and then receives from, one peer or all others. A part of peer p is p steps behind the start.
template <class Load>
struct Parts {
  const Call& call;
  SignedWay ours;
  uint64_t bytes;  // of a part
  uint32_t lanes;
  int peer;        // -1: all others, from the next rank on
  bool sends, receives;
  const char* send;
  char* recv;
  uint64_t sendStep, recvStep;
  bool pairs;      // in place
  Load loadTile;

  RH_FN uint32_t peers() const { return peer >= 0 ? 1 : static_cast<uint32_t>(call.team.worldSize - 1); }
  RH_FN uint32_t size() const { return (sends && receives ? 2 : 1) * peers(); }
  RH_FN uint32_t units() const { return size() * lanes; }
  RH_FN Transfer at(uint32_t i) const {
    const uint32_t n = i < peers() ? i : i - peers();
    int to = peer;
    if (peer < 0) {
      to = call.team.rank + 1 + static_cast<int>(n);
      if (to >= call.team.worldSize) to -= call.team.worldSize;
    }
    const bool isSend = sends && i < peers();
    const uint64_t step = static_cast<uint32_t>(to) * (isSend ? sendStep : recvStep);
    char* buffer = isSend ? const_cast<char*>(send) + step : recv + step;
    return {buffer, bytes, static_cast<uint8_t>(to), isSend, 0, static_cast<uint8_t>(lanes), static_cast<uint16_t>(i * lanes), 0};
  }
  RH_FN SignedWay calls(uint32_t) const { return ours; }
  RH_FN Raw16 load(const char* p, uint64_t i, uint64_t n) const { return loadTile(p, i, n); }
  RH_FN bool waitsForPair() const { return pairs; }
};

// What a rank sends to one peer, to all others (-1), receives from it or them. A step of 0: always the same part.
template <class Context>
RH_FN Parts<LoadBytes> partsOf(Context& c, int peer, bool sends, bool receives, uint64_t sendStep, uint64_t recvStep) {
  const Call& call = c.call();
  return {call, c.ours(), call.count, static_cast<uint32_t>(call.detail), peer, sends, receives, call.send, call.recv, sendStep, recvStep, false, LoadBytes()};
}

// A rank's own part.
template <class Context>
RH_FN void copyOwn(Context& c, const char* from, char* to, uint64_t bytes) {
  if (from == to) return;
  copyTiles(c.thread(), c.threads(), (bytes + 15) / 16, [&](uint64_t i) { return Bytes::load(from, i, bytes); },
            [&](uint64_t i, const Raw16& raw) { Bytes::store(to, i, bytes, raw); });
}

template <class Context, class Data>
RH_FN void runOverLanes(Context& c, bool isCollective, Data data) {
  c.setWay(wayOfLanes(c.call().team, static_cast<uint32_t>(c.call().detail)));
  runKernel<Cells<Context>, Packets<Context>>(c, Used{0, 0, false, 0, false, isCollective}, [&](Context& thread) { return thread.join() && data(thread); });
}
template <class Context, class Data>
RH_FN void runOfAll(Context& c, Data data) {
  c.setWay(wayOf(c, Algorithm::kPipe));
  runKernel<Cells<Context>, Packets<Context>>(c, Used{}, [&](Context& thread) { return thread.join() && data(thread); });
}

template <class Context, class List>
RH_FN bool runTransfers(Context& c, const List& list) {
  Transfers<Context, List> transfers(c, list);
  return transfers.run();
}

// A send and its receive have the same signature. It has no sequence, because other ranks do not take part.
RH_FN SignedWay transferCalls(const Team& team, uint32_t dtype, uint64_t count, uint32_t lanes) {
  return {sign({kSendOperation, dtype, 0, kNoRoot, count, 0, 0, 0}), wayOfLanes(team, lanes)};
}
template <bool kSends, class Context>
RH_FN void sendOrReceive(Context& c) {
  runOverLanes(c, false, [](Context& thread) {
    const Call& call = thread.call();
    auto parts = partsOf(thread, call.root, kSends, !kSends, 0, 0);
    parts.ours = transferCalls(call.team, call.call.dtype, call.call.count, parts.lanes);
    return runTransfers(thread, parts);
  });
}

struct Group {
  const GroupCall& group;
  RH_FN uint32_t size() const { return group.transfers; }
  RH_FN uint32_t units() const { return group.units; }
  RH_FN Transfer at(uint32_t i) const { return group.list[i]; }
  RH_FN SignedWay calls(uint32_t i) const {
    const Transfer& t = group.list[i];
    return transferCalls(group.call.team, t.dtype, t.bytes / typeBytes(t.dtype), t.lanes);
  }
  RH_FN Raw16 load(const char* p, uint64_t i, uint64_t n) const { return Bytes::load(p, i, n); }
  RH_FN bool waitsForPair() const { return false; }
};
template <class Context>
RH_FN void groupOfTransfers(Context& c, const GroupCall& group) {
  runOverLanes(c, false, [&](Context& thread) { return runTransfers(thread, Group{group}); });
}

// The root has parts for all others, or of all others, that are so many bytes apart.
template <class Context>
RH_FN bool runRooted(Context& c, bool rootSends, uint64_t step) {
  const int root = c.call().root;
  const bool isRoot = root == c.call().team.rank, sends = isRoot == rootSends;
  const auto parts = partsOf(c, isRoot ? -1 : root, sends, !sends, isRoot ? step : 0, isRoot ? step : 0);
  return runTransfers(c, parts);
}
template <class Context>
RH_FN void broadcastPipe(Context& c) {
  runOverLanes(c, true, [](Context& thread) {
    const Call& call = thread.call();
    if (!runRooted(thread, true, 0)) return false;
    if (call.root == call.team.rank) copyOwn(thread, call.send, call.recv, call.count);
    return true;
  });
}
template <class Context>
RH_FN void gatherPipe(Context& c) {
  runOverLanes(c, true, [](Context& thread) {
    const Call& call = thread.call();
    if (!runRooted(thread, false, call.count)) return false;
    if (call.root == call.team.rank) copyOwn(thread, call.send, call.recv + static_cast<uint32_t>(call.root) * call.count, call.count);
    return true;
  });
}
template <class Context>
RH_FN void scatterPipe(Context& c) {
  runOverLanes(c, true, [](Context& thread) {
    const Call& call = thread.call();
    if (!runRooted(thread, true, call.count)) return false;
    if (call.root == call.team.rank) copyOwn(thread, call.send + static_cast<uint32_t>(call.root) * call.count, call.recv, call.count);
    return true;
  });
}

template <class Context>
RH_FN void allGatherPipe(Context& c) {
  runOfAll(c, [](Context& thread) {
    const Call& call = thread.call();
    if (!runTransfers(thread, partsOf(thread, -1, true, true, 0, call.count))) return false;
    copyOwn(thread, call.send, call.recv + static_cast<uint32_t>(call.team.rank) * call.count, call.count);
    return true;
  });
}
template <class Context>
RH_FN void allToAllPipe(Context& c) {
  runOfAll(c, [](Context& thread) {
    const Call& call = thread.call();
    const uint64_t own = static_cast<uint32_t>(call.team.rank) * call.count;
    auto parts = partsOf(thread, -1, true, true, call.count, call.count);
    parts.pairs = call.send == call.recv;
    if (!runTransfers(thread, parts)) return false;
    copyOwn(thread, call.send + own, call.recv + own, call.count);
    return true;
  });
}

// Waits for the peer's next chunk. False: the comm has stopped.
template <class Context>
RH_FN bool awaitChunk(Context& c, Lane<Context>& lane, int r) {
  RH_ROLLED
  while (!lane.hasChunk()) {
    if (c.keepWaiting()) continue;
    c.giveUp(uint64_t{1} << r);
    return false;
  }
  c.endWait();
  SignedWay theirs;
  lane.readHeader(lane.slotToRead(), &theirs.signature, &theirs.way);
  if (isEqual(theirs, c.ours()) || mutated(Mutant::kLaneSignatureNotCompared)) return true;
  c.mismatch(r, theirs, c.ours());
  return false;
}

// The root of a reduction. Thread r of a block handles the flags of rank r. It adds a chunk once it is there from every rank.
template <class Elements, class Context>
RH_FN bool reduceLane(Context& c, const Elements& e, const LaneTeam& lanes, const Chunks& chunks, uint32_t lane) {
  constexpr int kBatch = Context::kPullBatch;
  const Call& call = c.call();
  const auto self = static_cast<uint32_t>(call.team.rank), worldSize = static_cast<uint32_t>(call.team.worldSize);
  const uint64_t bytes = call.count * Elements::kBytes;
  Shared& shared = c.shared();
  RH_ROLLED
  for (uint32_t q = lane; q < chunks.count; q += static_cast<uint32_t>(call.detail)) {
    bool good = true;
    RH_ROLLED
    for (uint32_t r = c.threadInBlock(); r < worldSize && good; r += c.dataThreadsInBlock()) {
      if (r == self) continue;
      Lane<Context> from(c, lanes, static_cast<int>(r), lane);
      shared.units[r].chunk = from.read();
      good = awaitChunk(c, from, static_cast<int>(r));
    }
    if (!c.dataAll(good)) return false;
    const uint64_t at = q * chunks.each, n = bytes - at < chunks.each ? bytes - at : chunks.each;
    const auto count = static_cast<size_t>(n / Elements::kBytes);
    RH_ROLLED
    for (uint32_t i = c.threadInBlock(); i < (n + 15) / 16; i += c.dataThreadsInBlock()) {
      Raw16 sum;
      foldRanks<kBatch>(
          e, call.team.worldSize, call.team.reduceGroup,
          [&](int first, int ranks, Raw16(&raw)[kBatch]) {
            RH_UNROLL
            for (int k = 0; k < kBatch; k++) {
              if (k >= ranks) continue;
              const int r = first + k;
              const char* slot = lanes.slot(call.team.rank, r, lane, shared.units[r].chunk);
              raw[k] = r == call.team.rank ? e.load(call.send + at, i, count) : c.loadSlotTile(slot + kLaneHeaderBytes + 16 * i);
            }
            return true;
          },
          &sum);
      e.store(call.recv + at, i, count, sum);
    }
    if (!mutated(Mutant::kReduceReleasesAlone)) c.dataAll(true);
    RH_ROLLED
    for (uint32_t r = c.threadInBlock(); r < worldSize; r += c.dataThreadsInBlock()) {
      if (r != self) Lane<Context>(c, lanes, static_cast<int>(r), lane).releaseChunk();
    }
  }
  return true;
}
template <class Elements, class Context>
RH_FN bool reduceAtRoot(Context& c, const Elements& e) {
  const LaneTeam lanes = c.lanes();
  const auto used = static_cast<uint32_t>(c.call().detail);
  const Chunks chunks = chunksOfTransfer(c.call().count * Elements::kBytes, used, lanes.slotBytes);
  const uint32_t blocks = (c.threads() + c.blockThreads() - 1) / c.blockThreads();
  RH_ROLLED
  for (uint32_t lane = c.block(); lane < used; lane += blocks) {
    if (!reduceLane(c, e, lanes, chunks, lane)) return false;
  }
  return true;
}
// What another rank sends to the root.
template <class Elements, class Context>
RH_FN Parts<LoadElements<Elements>> partsOf(Context& c, const Elements& e) {
  const Call& call = c.call();
  return {call, c.ours(), call.count * Elements::kBytes, static_cast<uint32_t>(call.detail), call.root, true, false, call.send, nullptr, 0, 0, false,
          LoadElements<Elements>{e}};
}
template <class T, class Context>
RH_FN void reducePipe(Context& c) {
  const Elements<T, false> e(c.call());
  runOverLanes(c, true, [&](Context& thread) {
    const Call& call = thread.call();
    if (call.root == call.team.rank) return reduceAtRoot(thread, e);
    return runTransfers(thread, partsOf(thread, e));
  });
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_PIPES_H_
