// What a rank has called, in three words, so that ranks which call different things find out.
#ifndef RAILHEAD_KERNELS_SIGNATURE_H_
#define RAILHEAD_KERNELS_SIGNATURE_H_

#include <stdint.h>

#include "railhead/base/target.h"

namespace railhead {

// No root, or a peer that is not named: in 24 bits, so that the ranks of any world fit below it.
constexpr uint32_t kNoRoot = 0xffffff;

// A call: its fields as a rank knows them, before they are packed.
struct SignedCall {
  uint32_t operation;  // 8 bits, never 0
  uint32_t dtype;      // 8 bits
  uint32_t reduction;  // 8 bits
  uint32_t root;       // world rank of the root, 24 bits; kNoRoot
  uint64_t count;      // elements
  uint32_t captured;   // 16 bits: the operation's number among those of the comm in the graph with which it was captured, from 1; 0 = it
                       // is in none. Ranks that captured different numbers of operations differ here, where the second replay of
                       // one meets the first of another
  uint32_t sequence;   // how many collectives the rank has called on the comm before this one; it wraps
  uint32_t history;    // a hash of the signatures of all those: ranks that have gone past a difference unseen (a root does not
                       // wait for anybody) find it in their next exchange
};

// The same, packed. Of a send or receive sequence and history are 0: not all ranks take part.
struct Signature {
  uint64_t call;    // from bit 0: operation 8, element type 8, captured 16, sequence 32; 0 = no call
  uint64_t count;
  uint64_t detail;  // from bit 0: root 24, reduction 8, history 32

  uint32_t operation() const { return static_cast<uint32_t>(call & 0xff); }
  uint32_t dtype() const { return static_cast<uint32_t>(call >> 8 & 0xff); }
  uint32_t captured() const { return static_cast<uint32_t>(call >> 16 & 0xffff); }
  uint32_t sequence() const { return static_cast<uint32_t>(call >> 32); }
  uint32_t root() const { return static_cast<uint32_t>(detail & kNoRoot); }
  uint32_t reduction() const { return static_cast<uint32_t>(detail >> 24 & 0xff); }
  uint32_t history() const { return static_cast<uint32_t>(detail >> 32); }
};

static inline bool operator==(const Signature& a, const Signature& b) {
  return a.call == b.call && a.count == b.count && a.detail == b.detail;
}
static inline bool operator!=(const Signature& a, const Signature& b) { return !(a == b); }

constexpr uint64_t kSequenceMask = ~uint64_t{0} << 32;  // of Signature::call

constexpr uint32_t kMaxCaptured = 0xffff;  // the next number is 1 again

RH_FN Signature sign(const SignedCall& c) {
  return {uint64_t{c.operation & 0xff} | uint64_t{c.dtype & 0xff} << 8 | uint64_t{c.captured & 0xffff} << 16 | uint64_t{c.sequence} << 32, c.count,
          uint64_t{c.root & kNoRoot} | uint64_t{c.reduction & 0xff} << 24 | uint64_t{c.history} << 32};
}

// The history of the call after this one. Multipliers of SplitMix64 and MurmurHash3, folded to 32 bits: a difference in any word
// changes the history of all calls behind it, but for one in 2^32.
RH_FN uint32_t historyAfter(const Signature& s) {
  const uint64_t words = s.call ^ s.count * 0x9e3779b97f4a7c15u ^ s.detail * 0xff51afd7ed558ccdu;
  return static_cast<uint32_t>(words * 0xbf58476d1ce4e5b9u >> 32);
}

// Of a mismatch: what the other rank called, and what this one.
struct Difference {
  Signature theirs, ours;
};

// The words of a rank's line in the control segment. Writer: the rank, at the begin of a collective. Readers: ranks that have
// waited in vain (Flags). A sequence lock without a counter: call is 0 while the others are being written.
struct CallWords {
  uint64_t call;
  uint64_t count;
  uint64_t detail;
};

// Signatures in memory that ranks share: every word by itself, relaxed; a flag orders them.
template <class Mem, class Words>
void storeSignature(Mem& mem, Words* at, const Signature& s) {
  mem.storeWord(&at->call, s.call);
  mem.storeWord(&at->count, s.count);
  mem.storeWord(&at->detail, s.detail);
}
template <class Mem, class Words>
Signature loadSignature(Mem& mem, const Words* at) {
  return {mem.loadWord(&at->call), mem.loadWord(&at->count), mem.loadWord(&at->detail)};
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_SIGNATURE_H_
