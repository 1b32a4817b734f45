// One-shot all-reduce: every rank publishes its contribution once and reduces everybody's by itself.
//
// Protocol, a block (at most Target::blockBytes) at a time:
//   1. epoch e = the rank's last epoch + 1; push the block into buffer e & 1, tile by tile; publish e (release).
//   2. for every rank in order: await that it has published e (acquire).
//   3. read every rank's tile of buffer e & 1, fold them in the fixed order, store the result.
// Why two buffers are enough: a rank writes buffer e & 1 again at e + 2, after it has seen e + 1 of everyone, and a rank
// publishes e + 1 only after its reads of epoch e. No rank's data is overwritten while somebody may still read it.
//
// What a Target must have (the vocabulary, first version):
//   Tile<T>                         a register's worth of accumulators; kElements of them; +=
//   int rank(), worldSize(), reduceGroup();  size_t blockBytes();
//   uint32_t beginEpoch()           the next epoch
//   push<T>(e, tile, src, n)        n elements of the caller into tile number `tile` of this rank's buffer
//   publish(e)                      release: everything pushed for e may be read
//   bool await(r, e)                acquire: rank r has published e; false = the group is broken, leave
//   Tile<T> load(src, n)            from the caller's memory
//   Tile<T> poll<T>(r, e, tile, n)  tile of rank r's buffer
//   store(dst, Tile<T>, n)          rounds to T once
#ifndef RAILHEAD_KERNELS_ALLREDUCE_ONESHOT_H_
#define RAILHEAD_KERNELS_ALLREDUCE_ONESHOT_H_

#include <stddef.h>
#include <stdint.h>

#include "railhead/fold.h"

namespace railhead {

// count elements of T at any address, which is why the pointers are to bytes. send and recv may be the same memory: a tile
// of recv is stored after the same tile of send was read for the last time.
// Returns false when the group broke; recv is then partly written.
template <class T, class Target>
bool allReduceOneshot(Target& target, const char* send, char* recv, size_t count) {
  using Tile = typename Target::template Tile<T>;
  constexpr size_t kTile = Tile::kElements;
  const int self = target.rank();
  const size_t perBlock = target.blockBytes() / sizeof(T);

  for (size_t base = 0; base < count; base += perBlock) {
    const size_t n = count - base < perBlock ? count - base : perBlock;
    const char* in = send + base * sizeof(T);
    char* out = recv + base * sizeof(T);
    const uint32_t epoch = target.beginEpoch();

    for (size_t i = 0; i < n; i += kTile) {
      target.template push<T>(epoch, i / kTile, in + i * sizeof(T), n - i < kTile ? n - i : kTile);
    }
    target.publish(epoch);
    for (int r = 0; r < target.worldSize(); r++) {
      if (r != self && !target.await(r, epoch)) return false;
    }
    for (size_t i = 0; i < n; i += kTile) {
      const size_t m = n - i < kTile ? n - i : kTile;
      const Tile sum = foldRanks<Tile>(target.worldSize(), target.reduceGroup(), [&](int r) {
        return r == self ? target.template load<T>(in + i * sizeof(T), m) : target.template poll<T>(r, epoch, i / kTile, m);
      });
      target.template store<T>(out + i * sizeof(T), sum, m);
    }
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_ONESHOT_H_
