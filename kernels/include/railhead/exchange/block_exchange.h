// Exchange by flags of blocks: how a GPU orders plain accesses to windows, for messages too large to be copied into packets. Each thread
// has one. Block b of a rank synchronises with block b of every other rank, so all ranks launch the same grid.
#ifndef RAILHEAD_KERNELS_BLOCK_EXCHANGE_H_
#define RAILHEAD_KERNELS_BLOCK_EXCHANGE_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/packets.h"

namespace railhead {

// What rank s publishes to block b of rank r: line b * worldSize + s of rank r's lines.
struct BlockLine {
  // The newest generation that the peer's block has published. It only grows; 64 bits do not wrap. Writer: one thread of the peer's block
  // (store release, system scope, after a barrier of the block). Reader: one thread of this block (load acquire, before a barrier of the
  // block). It publishes the stores of the peer's block to windows, and that the block has ended its reads. In the first exchange it also
  // publishes the stores of earlier kernels on the peer's stream, and the two offers.
  uint64_t generation;
  // Where the peer's buffers lie in its heap; kNoOffset = not in it. Writer: the thread that publishes. Reader: one thread of this block,
  // once, before the block publishes again.
  uint64_t sendOffset, recvOffset;
  uint64_t pad;
};
static_assert(sizeof(BlockLine) == 32, "lines are addressed by peers");

// Words in a rank's own memory.
struct BlockState {
  // The last even generation used. It lies here so that a replayed graph continues to count. All threads of a kernel read it at the
  // start, the kernel's last block writes it at the end; the kernels of a rank follow each other on a stream.
  uint64_t generation;
  uint32_t blocksDone;  // blocks of the running kernel that have finished; atomic
};

// A kernel's view of its team. Filled in by the host. Memory of the ranks is given by a base and a stride, in rank order, as this rank
// maps it.
struct BlockTeam {
  int rank;
  int worldSize;
  int reduceGroup;
  BlockState* state;
  BlockLine* lines;     // worldSize lines for each block of the largest grid
  uint32_t lineStride;  // lines of a rank
  char* heaps;
  uint64_t heapStride;
  uint64_t heapBytes;
};

// Mem has, besides what packet_exchange.h lists:
//   loadFlagAcquire, storeFlagRelease           64-bit words, system scope
//   loadFlag, storeFlag                         the same, relaxed (for mutants)
//   loadOffer, storeOffer                       64-bit words, plain
//   loadElements<Elements>, storeElements       a tile of a window, plain
//   blockAll(v)                                 blockSync that returns whether v was true in all of the block's threads
//   blockWords()                                2 * kMaxWorldSize words of 64 bits, shared by the block's threads
//   refuse(r)                                   ends the kernel because rank r offered memory that is not in its heap
//   block(), blockThreads()
template <class Mem>
class BlockExchange {
 public:
  static constexpr int kBatch = Packets<Mem>::kBatch;

  RH_FN BlockExchange(Mem& mem, const BlockTeam& team) : mem_(mem), team_(team), generation_(mem.loadState(&team.state->generation)) {}

  RH_FN int rank() const { return team_.rank; }
  RH_FN int worldSize() const { return team_.worldSize; }
  RH_FN int reduceGroup() const { return team_.reduceGroup; }
  RH_FN uint32_t first() const { return mem_.thread(); }
  RH_FN uint32_t step() const { return mem_.threads(); }

  RH_FN void beginEpoch() { generation_ += 2; }

  // What the next exchange publishes.
  RH_FN void offer(uint64_t send, uint64_t recv) {
    sendOffset_ = send;
    recvOffset_ = recv;
  }

  // Publishes what the block's threads have done before phase 0 or 1, and waits for the same block of every rank. In phase 0 the thread
  // that waits for a rank also reads its offers, once, and shares them with the block. The first barrier orders the other threads'
  // accesses before the release, the last one orders the acquire before theirs.
  RH_FN bool meet(int phase) {
    const uint64_t generation = generation_ + static_cast<uint32_t>(mutated(Mutant::kBlockOneGeneration) ? 0 : phase);
    if (!mutated(Mutant::kBlockPublishesAlone)) mem_.blockSync();
    bool arrived = true;
    RH_ROLLED
    for (uint32_t r = mem_.threadInBlock(); r < static_cast<uint32_t>(team_.worldSize); r += mem_.blockThreads()) {
      publish(static_cast<int>(r), generation, phase);
    }
    RH_ROLLED
    for (uint32_t r = mem_.threadInBlock(); r < static_cast<uint32_t>(team_.worldSize) && arrived; r += mem_.blockThreads()) {
      arrived = await(static_cast<int>(r), generation);
      if (!arrived || phase != 0) continue;
      offers(static_cast<int>(r))[0] = mem_.loadOffer(&lineOf(static_cast<int>(r))->sendOffset);
      offers(static_cast<int>(r))[1] = mem_.loadOffer(&lineOf(static_cast<int>(r))->recvOffset);
    }
    return mutated(Mutant::kBlockAwaitsAlone) ? arrived : mem_.blockAll(arrived);
  }

  // As FlagExchange::readOffers, on the offers that meet(0) has read.
  RH_FN bool readOffers(uint64_t bytes, bool usesRecv, bool* all) {
    *all = true;
    RH_ROLLED
    for (int r = 0; r < team_.worldSize; r++) {
      const uint64_t send = offers(r)[0], recv = usesRecv ? offers(r)[1] : send;
      if (send == kNoOffset || (recv == kNoOffset && !mutated(Mutant::kBlockRecvNotOffered))) {
        *all = false;
      } else if (!isInside(send, bytes) || !isInside(recv, bytes)) {
        if (mem_.threadInBlock() == 0) mem_.refuse(r);
        return false;
      }
    }
    return true;
  }
  // Called if not all ranks have offered. The next offers may overwrite these only after all threads have read them, and the packets that
  // follow do not wait for threads without a tile. So this is one more exchange.
  RH_FN bool fallBack() { return mutated(Mutant::kBlockStepsBackAlone) || meet(1); }

  template <class Elements>
  RH_FN typename Elements::Raw loadRemote(int r, uint64_t tile, size_t count) {
    return mem_.template loadElements<Elements>(heap(r) + offers(r)[0], tile, count);
  }
  template <class Elements>
  RH_FN void storeRemote(int r, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
    mem_.template storeElements<Elements>(heap(r) + offers(r)[1], tile, count, raw);
  }

  // Every thread calls it once, at its end, so that the next kernel continues to count.
  RH_FN void finish() {
    mem_.blockSync();
    if (mem_.threadInBlock() != 0) return;
    const bool last = mem_.countBlock(&team_.state->blocksDone);
    if (last && !mutated(Mutant::kBlockGenerationNotKept)) mem_.storeState(&team_.state->generation, generation_);
  }

 private:
  // The line of rank reader's block that rank writer's block writes.
  RH_FN BlockLine* line(int reader, int writer) const {
    return team_.lines + static_cast<uint32_t>(reader) * team_.lineStride + mem_.block() * static_cast<uint32_t>(team_.worldSize) +
           static_cast<uint32_t>(writer);
  }
  RH_FN BlockLine* lineOf(int r) const { return line(team_.rank, r); }
  RH_FN char* heap(int r) const { return team_.heaps + static_cast<uint32_t>(r) * team_.heapStride; }
  // The offers of rank r, send then recv, as meet(0) has read them.
  RH_FN uint64_t* offers(int r) const { return mem_.blockWords() + 2 * r; }
  RH_FN bool isInside(uint64_t offset, uint64_t bytes) const {
    return mutated(Mutant::kBlockOfferNotBounded) || (offset <= team_.heapBytes && bytes <= team_.heapBytes - offset);
  }

  RH_FN void publish(int r, uint64_t generation, int phase) {
    BlockLine* theirs = line(r, team_.rank);
    if (mutated(Mutant::kBlockOffersLate)) mem_.storeFlagRelease(&theirs->generation, generation);
    if (phase == 0) {
      mem_.storeOffer(&theirs->sendOffset, sendOffset_);
      mem_.storeOffer(&theirs->recvOffset, recvOffset_);
    }
    if (mutated(Mutant::kBlockOffersLate)) return;
    if (mutated(Mutant::kBlockPublishRelaxed)) {
      mem_.storeFlag(&theirs->generation, generation);
    } else {
      mem_.storeFlagRelease(&theirs->generation, generation);
    }
  }

  // A peer may be one generation ahead: it may publish the next one as soon as it has seen this rank's.
  RH_FN bool await(int r, uint64_t generation) {
    const uint64_t* flag = &lineOf(r)->generation;
    RH_ROLLED
    while ((mutated(Mutant::kBlockAwaitRelaxed) ? mem_.loadFlag(flag) : mem_.loadFlagAcquire(flag)) < generation) {
      if (mem_.keepWaiting()) continue;
      mem_.missing(r);
      return false;
    }
    return true;
  }

  Mem& mem_;
  const BlockTeam& team_;
  uint64_t generation_;
  uint64_t sendOffset_ = kNoOffset, recvOffset_ = kNoOffset;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BLOCK_EXCHANGE_H_
