// Transfers: any number of sends and receives of a rank at the same time, over pipes. Each proceeds whenever its pipe has a credit or a
// chunk, so no order of the list can deadlock. Gather and scatter are transfers too.
#ifndef RAILHEAD_KERNELS_TRANSFERS_H_
#define RAILHEAD_KERNELS_TRANSFERS_H_

#include "railhead/exchange/flag_waits.h"
#include "railhead/exchange/pipes.h"

namespace railhead {

struct Transfer {
  int peer;             // another rank
  bool sends;           // else receives
  char* buffer;
  uint64_t bytes;
  Signature signature;  // must equal the peer's
  uint64_t done;        // bytes; set to 0 by the caller
  bool ended;           // set to false by the caller
};

template <class Mem>
class Transfers {
 public:
  // Transfers to one rank proceed in the order of the list, and so do transfers from one rank.
  Transfers(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, Transfer* list, int n)
      : mem_(mem), team_(team), flags_(flags), pipes_(mem, team, flags), waits_(mem, team, flags), list_(list), n_(n) {}

  // Returns true when all have ended, false when the group broke. Each wait, for any of them to proceed, has the team's deadline.
  bool run() {
    flags_.announce();
    while (!allEnded()) {
      if (!moveAll() || (moved_ == 0 && !allEnded() && !waits_.wait())) return false;
    }
    return true;
  }

 private:
  bool allEnded() const {
    for (int i = 0; i < n_; i++) {
      if (!list_[i].ended) return false;
    }
    return true;
  }

  // Moves every transfer as far as it can go. Of the transfers of one pipe, only the first that has not ended.
  bool moveAll() {
    moved_ = 0;
    waits_.clear();
    uint64_t sending = 0, receiving = 0;  // bit r: an earlier transfer to, or from, rank r has not ended
    for (int i = 0; i < n_; i++) {
      Transfer& t = list_[i];
      uint64_t& busy = t.sends ? sending : receiving;
      const uint64_t bit = uint64_t{1} << t.peer;
      if (t.ended || (busy & bit) != 0) continue;
      if (!(t.sends ? push(t) : pull(t))) return false;
      if (!t.ended) busy |= bit;
    }
    return true;
  }

  bool push(Transfer& t) {
    Flag& tail = pipes_.tail(team_.rank, t.peer);
    Flag& head = pipes_.head(team_.rank, t.peer);
    while (!t.ended) {
      const uint32_t chunk = mem_.loadRelaxed(&tail.value);
      const uint32_t credit = Pipes<Mem>::credit(chunk);
      if (!Flags<Mem>::reached(mem_.loadAcquire(&head.value), credit)) {
        waits_.add(head, credit, t.peer);
        return true;
      }
      const uint64_t n = chunkOf(t);
      char* slot = pipes_.slot(team_.rank, t.peer, chunk);
      pipes_.writeHeader(slot, t.signature, n);
      mem_.copyToSlot(slot + kSlotHeaderBytes, t.buffer + t.done, n);
      pipes_.send(t.peer);
      advance(t, n);
    }
    return true;
  }

  bool pull(Transfer& t) {
    Flag& tail = pipes_.tail(t.peer, team_.rank);
    Flag& head = pipes_.head(t.peer, team_.rank);
    while (!t.ended) {
      const uint32_t chunk = mem_.loadRelaxed(&head.value);
      const uint32_t written = Pipes<Mem>::next(chunk);
      if (!Flags<Mem>::reached(mem_.loadAcquire(&tail.value), written)) {
        waits_.add(tail, written, t.peer);
        return true;
      }
      const char* slot = pipes_.slot(t.peer, team_.rank, chunk);
      if (!pipes_.agrees(slot, t.signature, t.peer)) return false;
      const uint64_t n = chunkOf(t);
      mem_.copyFromSlot(t.buffer + t.done, slot + kSlotHeaderBytes, n);
      pipes_.release(t.peer);
      advance(t, n);
    }
    return true;
  }

  uint64_t chunkOf(const Transfer& t) const {
    const uint64_t left = t.bytes - t.done;
    return left < pipes_.chunkBytes() ? left : pipes_.chunkBytes();
  }
  // A transfer of 0 bytes is an empty chunk, which carries the signature.
  void advance(Transfer& t, uint64_t n) {
    t.done += n;
    t.ended = t.done == t.bytes;
    moved_++;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Flags<Mem>& flags_;
  Pipes<Mem> pipes_;
  FlagWaits<Mem> waits_;  // at most one flag of each pipe
  Transfer* list_;
  int n_;
  int moved_ = 0;  // chunks, in the last turn
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_TRANSFERS_H_
