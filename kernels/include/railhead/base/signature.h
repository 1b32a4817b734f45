// A rank's call in three words. Ranks compare them to detect that they call different things.
#ifndef RAILHEAD_KERNELS_SIGNATURE_H_
#define RAILHEAD_KERNELS_SIGNATURE_H_

#include <stdint.h>

#include "railhead/base/target.h"

namespace railhead {

// No root or peer. 24 bits, so every rank of a world is below it.
constexpr uint32_t kNoRoot = 0xffffff;

// The fields of a call, before they are packed.
struct SignedCall {
  uint32_t operation;  // 8 bits, never 0
  uint32_t dtype;      // 8 bits
  uint32_t reduction;  // 8 bits
  uint32_t root;       // world rank of the root, 24 bits; kNoRoot
  uint64_t count;      // elements
  uint32_t captured;   // 16 bits: index of the operation among those of the comm in its captured graph, from 1; 0 = an eager call. If
                       // ranks captured different numbers of operations, the second replay of one rank meets the first of another, and
                       // their indices differ
  uint32_t sequence;   // collectives that the rank has called on the comm before this one; wraps
  uint32_t history;    // hash of the signatures of all those. A root waits for no rank, so a mismatch may pass undetected; the next
                       // exchange then detects it
};

// A packed call. sequence and history of a send or receive are 0, since not all ranks take part.
struct Signature {
  uint64_t call;    // bits 0..7 operation, 8..15 element type, 16..31 captured, 32..63 sequence; 0 = no call
  uint64_t count;
  uint64_t detail;  // bits 0..23 root, 24..31 reduction, 32..63 history

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

constexpr uint32_t kMaxCaptured = 0xffff;  // the index after it is 1 again

RH_FN Signature sign(const SignedCall& c) {
  return {uint64_t{c.operation & 0xff} | uint64_t{c.dtype & 0xff} << 8 | uint64_t{c.captured & 0xffff} << 16 | uint64_t{c.sequence} << 32, c.count,
          uint64_t{c.root & kNoRoot} | uint64_t{c.reduction & 0xff} << 24 | uint64_t{c.history} << 32};
}

// The history of the next call. Multipliers of SplitMix64 and MurmurHash3, folded to 32 bits. A difference in any word changes the
// histories of all later calls, with probability 1 - 2^-32.
RH_FN uint32_t historyAfter(const Signature& s) {
  const uint64_t words = s.call ^ s.count * 0x9e3779b97f4a7c15u ^ s.detail * 0xff51afd7ed558ccdu;
  return static_cast<uint32_t>(words * 0xbf58476d1ce4e5b9u >> 32);
}

// The two calls of a mismatch.
struct Difference {
  Signature theirs, ours;
};

// The signature of a rank's current collective, in the rank's line of the control segment. Writer: the rank, at the start of a
// collective. Readers: ranks whose wait takes long (Flags). A sequence lock without a counter: call is 0 while the other words are
// written.
struct CallWords {
  uint64_t call;
  uint64_t count;
  uint64_t detail;
};

// Signatures in shared memory. Each word is relaxed; a flag orders them.
template <class Mem, class Words>
RH_INLINE void storeSignature(Mem& mem, Words* at, const Signature& s) {
  mem.storeWord(&at->call, s.call);
  mem.storeWord(&at->count, s.count);
  mem.storeWord(&at->detail, s.detail);
}
template <class Mem, class Words>
RH_INLINE Signature loadSignature(Mem& mem, const Words* at) {
  return {mem.loadWord(&at->call), mem.loadWord(&at->count), mem.loadWord(&at->detail)};
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_SIGNATURE_H_
