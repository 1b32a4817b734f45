// Operations of all ranks whose data travels in inboxes: all-gather, all-to-all, broadcast, reduce-scatter. A thread sends and receives the
// same tiles in every chunk, as the inboxes need (railhead/exchange/inbox_exchange.h).
#ifndef RAILHEAD_KERNELS_GPU_EXCHANGED_H_
#define RAILHEAD_KERNELS_GPU_EXCHANGED_H_

#include "railhead/base/fold.h"
#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"
#include "railhead/gpu/elements.h"

namespace railhead::gpu {

// A chunk of a part: the part's bytes from `at` on.
struct Chunk {
  uint64_t at;
  uint64_t bytes;
  uint32_t tiles;
  uint32_t exchanged;  // tiles that travel: of several chunks each has as many as the first (InboxExchange::kPadsChunks)
};
RH_FN Chunk chunkOf(uint64_t part, uint64_t at, uint32_t perChunk) {
  const uint64_t most = uint64_t{perChunk} * 16, left = part - at;
  const uint64_t bytes = left < most ? left : most;
  const uint32_t tiles = static_cast<uint32_t>((bytes + 15) / 16);
  return {at, bytes, tiles, part > most && !mutated(Mutant::kShortLastChunk) ? perChunk : tiles};
}

// Receives tile i of every rank and stores it: that of rank r to `to(r)`, nullptr = nowhere. Tile t of a chunk is at to(r) + 16 t.
template <bool kSlices, class Exchange, class To>
RH_FN bool receiveFromAll(Exchange& exchange, uint32_t i, const Chunk& c, To to) {
  constexpr int kBatch = Exchange::kBatch;
  RH_ROLLED
  for (int first = 0; first < exchange.worldSize(); first += kBatch) {
    const int ranks = exchange.worldSize() - first < kBatch ? exchange.worldSize() - first : kBatch;
    Raw16 raw[kBatch];
    const bool there = kSlices ? exchange.pollSlice(first, ranks, i, 0, Raw16{}, raw) : exchange.poll(first, ranks, i, Raw16{}, raw);
    if (!there) return false;
    RH_UNROLL
    for (int q = 0; q < kBatch; q++) {
      if (q >= ranks || i >= c.tiles) continue;
      char* out = to(first + q);
      if (out != nullptr) Bytes::store(out, i, c.bytes, raw[q]);
    }
  }
  return true;
}

// recv has a part of each rank, in rank order. In place: send is this rank's part of recv.
template <class Exchange>
RH_FN bool allGather(Exchange& exchange, const char* send, char* recv, uint64_t part) {
  const uint32_t perChunk = exchange.chunkTiles(), step = exchange.step();
  RH_ROLLED
  for (uint64_t at = 0; at == 0 || at < part; at += uint64_t{perChunk} * 16) {
    const Chunk c = chunkOf(part, at, perChunk);
    if (!exchange.beginEpoch()) return false;
    RH_ROLLED
    for (uint32_t i = exchange.first(); i < c.exchanged; i += step) {
      exchange.pushAll(i, i < c.tiles ? Bytes::load(send + at, i, c.bytes) : Raw16{});
    }
    RH_ROLLED
    for (uint32_t i = exchange.first(); i < c.exchanged; i += step) {
      if (!receiveFromAll<false>(exchange, i, c, [&](int r) { return recv + static_cast<uint32_t>(r) * part + at; })) return false;
    }
  }
  return true;
}

// Sends tile j of the parts of all ranks, a batch of loads before its stores, from the next rank on, so that the ranks do not all send to the
// same one at once. load(owner, j).
template <class Exchange, class Load>
RH_FN void sendToOwners(Exchange& exchange, uint32_t j, Load load) {
  constexpr int kBatch = Exchange::kBatch;
  const int worldSize = exchange.worldSize(), self = exchange.rank();
  RH_ROLLED
  for (int begun = Exchange::kKeepsOwn ? 1 : 0; begun < worldSize; begun += kBatch) {
    const auto owner = [&](int q) { return self + begun + q < worldSize ? self + begun + q : self + begun + q - worldSize; };
    Raw16 raw[kBatch] = {};
    RH_UNROLL
    for (int q = 0; q < kBatch; q++) {
      if (begun + q < worldSize) raw[q] = load(owner(q), j);
    }
    RH_UNROLL
    for (int q = 0; q < kBatch; q++) {
      if (begun + q < worldSize) exchange.pushSlice(begun + q, owner(q), j, 0, raw[q]);
    }
  }
}

// send and recv have a part for each rank, in rank order. In place (send == recv): a thread stores a tile of a part after it has sent it.
template <class Exchange>
RH_FN bool allToAll(Exchange& exchange, const char* send, char* recv, uint64_t part) {
  const uint32_t perChunk = exchange.sliceTiles(), step = exchange.step();
  RH_ROLLED
  for (uint64_t at = 0; at == 0 || at < part; at += uint64_t{perChunk} * 16) {
    const Chunk c = chunkOf(part, at, perChunk);
    if (!exchange.beginEpoch()) return false;
    RH_ROLLED
    for (uint32_t j = exchange.first(); j < c.exchanged; j += step) {
      sendToOwners(exchange, j, [&](int owner, uint32_t i) {
        return i < c.tiles ? Bytes::load(send + static_cast<uint32_t>(owner) * part + at, i, c.bytes) : Raw16{};
      });
    }
    RH_ROLLED
    for (uint32_t j = exchange.first(); j < c.exchanged; j += step) {
      if (!receiveFromAll<true>(exchange, j, c, [&](int r) { return recv + static_cast<uint32_t>(r) * part + at; })) return false;
    }
  }
  return true;
}

// The root's send to every rank's recv. In one chunk only the root sends: a rank writes to a half again two kernels later, after the lines of
// the kernel between have told it that every rank has ended this one. Within a kernel of several chunks no line tells that, so every rank
// sends to every rank.
template <class Exchange>
RH_FN bool broadcast(Exchange& exchange, int root, const char* send, char* recv, uint64_t bytes) {
  const uint32_t perChunk = exchange.chunkTiles(), step = exchange.step();
  const bool isRoot = exchange.rank() == root;
  const bool all = bytes > uint64_t{perChunk} * 16 && !mutated(Mutant::kBroadcastOfChunksAlone);
  RH_ROLLED
  for (uint64_t at = 0; at == 0 || at < bytes; at += uint64_t{perChunk} * 16) {
    const Chunk c = chunkOf(bytes, at, perChunk);
    char* out = isRoot && send == recv ? nullptr : recv + at;
    if (!exchange.beginEpoch()) return false;
    RH_ROLLED
    for (uint32_t i = exchange.first(); i < c.exchanged; i += step) {
      const Raw16 raw = isRoot && i < c.tiles ? Bytes::load(send + at, i, c.bytes) : Raw16{};
      if (isRoot || all) exchange.pushAll(i, raw);
      if (isRoot && out != nullptr && i < c.tiles) Bytes::store(out, i, c.bytes, raw);
    }
    RH_ROLLED
    for (uint32_t i = exchange.first(); i < c.exchanged; i += step) {
      if (all) {
        if (!receiveFromAll<false>(exchange, i, c, [&](int r) { return r == root && !isRoot ? out : nullptr; })) return false;
      } else if (!isRoot) {
        Raw16 raw[Exchange::kBatch];
        if (!exchange.poll(root, 1, i, Raw16{}, raw)) return false;
        if (i < c.tiles) Bytes::store(out, i, c.bytes, raw[0]);
      }
    }
  }
  return true;
}

// send has count elements for each rank, in rank order; recv receives this rank's, reduced in the order of fold.h. In place: recv is this rank's
// part of send.
template <class Elements, class Exchange>
RH_FN bool reduceScatter(Exchange& exchange, const Elements& e, const char* send, char* recv, uint64_t count) {
  const uint32_t perChunk = exchange.sliceTiles(), step = exchange.step();
  const uint64_t part = count * Elements::kBytes;
  RH_ROLLED
  for (uint64_t at = 0; at == 0 || at < part; at += uint64_t{perChunk} * 16) {
    const Chunk c = chunkOf(part, at, perChunk);
    const size_t n = static_cast<size_t>(c.bytes / Elements::kBytes);
    const auto load = [&](int owner, uint32_t i) {
      return i < c.tiles ? e.load(send + static_cast<uint32_t>(owner) * part + at, i, n) : Raw16{};
    };
    if (!exchange.beginEpoch()) return false;
    RH_ROLLED
    for (uint32_t j = exchange.first(); j < c.exchanged; j += step) sendToOwners(exchange, j, load);
    RH_ROLLED
    for (uint32_t j = exchange.first(); j < c.exchanged; j += step) {
      const Raw16 own = Exchange::kKeepsOwn ? load(exchange.rank(), j) : Raw16{};
      Raw16 sum;
      if (!foldRanks<Exchange::kBatch>(
              e, exchange.worldSize(), exchange.reduceGroup(),
              [&](int r, int ranks, Raw16(&raw)[Exchange::kBatch]) { return exchange.pollSlice(r, ranks, j, 0, own, raw); }, &sum)) {
        return false;
      }
      if (j < c.tiles) e.store(recv + at, j, n, sum);
      exchange.release(0, j);
    }
  }
  return true;
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EXCHANGED_H_
