// Elements and memory of the protocols on a CPU, where a rank is one thread: it handles runs of tiles, not single tiles. A run refers to
// memory. The store of a run is what copies, scales or reduces it, by one call of a function of run_fold.h.
#ifndef RAILHEAD_KERNELS_HOST_RUNS_H_
#define RAILHEAD_KERNELS_HOST_RUNS_H_

#include <string.h>

#include <type_traits>

#include "host/mem.h"
#include "host/run_fold.h"
#include "host/types.h"

namespace railhead::host {

// Most tiles of a run. A run of f32 is 8 KiB: what a rank has reduced is still in its first-level cache when it stores it a second time.
constexpr uint32_t kRunTiles = 128;

constexpr uint32_t kReducedTile = 16, kCopiedTile = 64;  // elements of a tile; a copy's are bytes

class Runs {
 public:
  // Elements that are read when the run is stored.
  struct Raw {
    // nullptr: they are the fold, of Runs, that nothing has stored yet. Its first store sets this, so that a second one copies.
    mutable const char* at = nullptr;
    uint32_t elements = 0;
    bool scaled = false;  // to be scaled first
    bool taken = false;   // this rank is the next to write to the elements' memory
  };
  // Accumulators: the sum of one to three runs, in this order.
  struct Sum {
    const char* at[3];
    uint64_t sums;  // bit i: at[i] has accumulators, else elements
    int n;
    uint32_t elements;
  };

  // For copies of bytes.
  Runs() : kElements(kCopiedTile), kBytes(1), kTileBytes(kCopiedTile), kSumBytes(0) {}
  Runs(const RunKernels& kernels, const ReduceOp& op, int worldSize)
      : kElements(kReducedTile), kBytes(kernels.elementBytes), kTileBytes(kReducedTile * kBytes), kSumBytes(kReducedTile * kernels.sumBytes),
        kernels_(&kernels), op_(op) {
    fold_.kind = op.kind;
    fold_.worldSize = worldSize;
  }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  // The constants of the type, by their names in other targets. kTileBytes, kSumBytes: of a tile of elements, and of accumulators.
  const uint32_t kElements, kBytes, kTileBytes, kSumBytes;
  static constexpr bool kFoldsAtOnce = true;

  // The run that begins at a tile of count elements: as the rank contributes it, and as it lies in memory.
  Raw load(const char* base, uint64_t tile, size_t count) const {
    return {base + tile * kTileBytes, behind(tile, count), op_.kind == Reduction::kPreMulSum};
  }
  Raw loadRaw(const char* base, uint64_t tile, size_t count) const { return {base + tile * kTileBytes, behind(tile, count), false}; }
  void store(char* base, uint64_t tile, size_t count, const Raw& raw) const { write(base + tile * kTileBytes, raw, behind(tile, count)); }

  // The run of rank r: to be given for all ranks in turn, from 0 on.
  void take(int r, const Raw& raw) const {
    if (r == 0) takes_ = false;
    if (r == 0 || raw.elements < shortest_) shortest_ = raw.elements;
    if (raw.taken) {
      takes_ = true;
      takenRun_ = r;
    }
    fold_.from[r] = elementsOf(raw);
  }
  // The reduction of these runs. To be stored before the next fold or sum.
  Raw fold(int worldSize, int reduceGroup) const {
    fold_.sums = 0;
    fold_.n = worldSize;
    fold_.group = reduceGroup;
    return {nullptr, shortest_};
  }

  Sum widen(const Raw& raw) const { return {{elementsOf(raw)}, 0, 1, raw.elements}; }
  void add(Sum* sum, const Sum& other) const {
    Sum next = other;
    if (other.n > 1) {
      writeSum(partial_, other);
      next = {{partial_}, 1, 1, other.elements};
    }
    sum->at[sum->n] = next.at[0];
    sum->sums |= next.sums << sum->n;
    sum->n++;
    if (next.elements < sum->elements) sum->elements = next.elements;
  }
  // To be stored before the next fold or sum.
  Raw narrow(const Sum& sum) const {
    use(sum);
    return {nullptr, sum.elements, false};
  }

  // Stores at most so many elements of a run.
  void write(char* to, const Raw& raw, uint32_t most) const {
    const uint32_t elements = raw.elements < most ? raw.elements : most;
    const size_t bytes = static_cast<size_t>(elements) * kBytes;
    if (raw.at == nullptr) {
      if (takes_) {
        foldTaken(to, elements);
      } else if (elements > 0) {
        kernels_->fold(fold_, false, to, elements);
      }
      raw.at = to;
    } else if (raw.scaled) {
      kernels_->scale(op_, raw.at, to, elements);
    } else if (raw.taken) {
      inPieces(bytes, [&](size_t at, size_t n) {
        takeLines(raw.at + at, n);
        memcpy(to + at, raw.at + at, n);
      });
    } else if (raw.at != to) {
      memcpy(to, raw.at, bytes);
    }
  }
  void writeSum(char* to, const Sum& sum) const {
    use(sum);
    kernels_->fold(fold_, true, to, sum.elements);
  }

 private:
  // Bytes whose lines are requested at a time: as many as a core has requests of its first-level cache under way.
  static constexpr size_t kTakenBytes = 1024;
  template <class Do>
  static void inPieces(size_t bytes, Do piece) {
    for (size_t at = 0; at < bytes; at += kTakenBytes) piece(at, bytes - at < kTakenBytes ? bytes - at : kTakenBytes);
  }
  // The fold, the lines of one run of which this rank takes. It ends the fold.
  void foldTaken(char* to, uint32_t elements) const {
    inPieces(static_cast<size_t>(elements) * kBytes, [&](size_t at, size_t n) {
      takeLines(fold_.from[takenRun_], n);
      kernels_->fold(fold_, false, to + at, n / kBytes);
      for (int r = 0; r < fold_.n; r++) fold_.from[r] += n;
    });
  }
  uint32_t behind(uint64_t tile, size_t count) const {
    const size_t left = count - tile * kElements, most = kRunTiles * kElements;
    return static_cast<uint32_t>(left < most ? left : most);
  }
  // Only a rank's own run is scaled, so one is at a time.
  const char* elementsOf(const Raw& raw) const {
    if (__builtin_expect(!raw.scaled, 1)) return raw.at;
    kernels_->scale(op_, raw.at, scaled_, raw.elements);
    return scaled_;
  }
  void use(const Sum& sum) const {
    for (int i = 0; i < sum.n; i++) fold_.from[i] = sum.at[i];
    takes_ = false;
    fold_.sums = sum.sums;
    fold_.n = fold_.group = sum.n;
  }

  static constexpr size_t kMostBytes = kRunTiles * kReducedTile * 8;

  const RunKernels* kernels_ = nullptr;
  ReduceOp op_ = {};
  mutable RunFold fold_;
  mutable uint32_t shortest_ = 0;  // elements of the shortest run of the fold
  mutable bool takes_ = false;     // the fold has a run that is taken: this one
  mutable int takenRun_ = 0;
  alignas(64) mutable char scaled_[kMostBytes], partial_[kMostBytes];
};

// Memory whose tiles are runs.
class RunMem : public Mem {
 public:
  explicit RunMem(const Runs& runs) : runs_(runs) {}

  static constexpr uint32_t kStep = kRunTiles;  // tiles of a turn

  // A run of at most so many tiles.
  template <class Run>
  Run loadTile(const char* p, uint32_t tiles) {
    const uint32_t elements = (tiles < kRunTiles ? tiles : kRunTiles) * runs_.kElements;
    if constexpr (std::is_same_v<Run, Runs::Sum>) {
      return {{p}, 1, 1, elements};
    } else {
      return {p, elements, false};
    }
  }
  // The same of memory that this rank is the next to write to.
  template <class Run>
  Run takeTile(const char* p, uint32_t tiles) {
    Run run = loadTile<Run>(p, tiles);
    run.taken = true;
    return run;
  }
  void storeTile(char* p, const Runs::Raw& raw, uint32_t tiles) { runs_.write(p, raw, tiles < kRunTiles ? tiles * runs_.kElements : raw.elements); }
  template <class Run>
  Run loadSlotTile(const char* p, uint32_t tiles) {
    return loadTile<Run>(p, tiles);
  }
  void storeSlotTile(char* p, const Runs::Raw& raw) { runs_.write(p, raw, raw.elements); }
  void storeSlotTile(char* p, const Runs::Sum& sum) { runs_.writeSum(p, sum); }
  template <class Run>
  Run loadLocalTile(const char* p, uint32_t tiles) {
    return loadTile<Run>(p, tiles);
  }
  template <class Run>
  void storeLocalTile(char* p, const Run& run) {
    storeSlotTile(p, run);
  }
  template <class>
  Runs::Raw loadElements(const char* base, uint64_t tile, size_t count) {
    return runs_.loadRaw(base, tile, count);
  }
  template <class>
  void storeElements(char* base, uint64_t tile, size_t count, const Runs::Raw& raw) {
    runs_.store(base, tile, count, raw);
  }

 private:
  const Runs& runs_;
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_RUNS_H_
