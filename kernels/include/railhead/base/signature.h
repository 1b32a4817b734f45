// What a rank has called, in two words, so that ranks which call different things find out.
#ifndef RAILHEAD_KERNELS_SIGNATURE_H_
#define RAILHEAD_KERNELS_SIGNATURE_H_

#include <stdint.h>

#include "railhead/base/target.h"

namespace railhead {

// call, from bit 0: operation 8 bits (never 0), element type 8, reduction 8, root 8, sequence 16, history 16.
//   sequence   how many collectives the rank has called on the comm
//   history    a hash of the signatures of all those before this one: ranks that have gone past a difference unseen (a root
//              does not wait for anybody) find it in their next exchange
// Of a send or receive, sequence and history are 0: not all ranks take part.
//
// count, from bit 0: elements 48 bits, captured 16.
//   captured   the operation's number among those of the comm in the graph with which it was captured, from 1; 0 = it is in none.
//              Ranks that captured different numbers of operations differ here, where the second replay of one meets the first of
//              another.
struct Signature {
  uint64_t call;
  uint64_t count;
};

static inline bool operator==(const Signature& a, const Signature& b) { return a.call == b.call && a.count == b.count; }
static inline bool operator!=(const Signature& a, const Signature& b) { return !(a == b); }

constexpr int kSequenceShift = 32;
constexpr uint64_t kSequenceOne = uint64_t{1} << kSequenceShift;
constexpr uint64_t kSequenceMask = uint64_t{0xffff} << kSequenceShift;
constexpr int kHistoryShift = 48;
constexpr int kCapturedShift = 48;
constexpr uint64_t kElementsMask = (uint64_t{1} << kCapturedShift) - 1;  // more than any address space has bytes
constexpr uint32_t kMaxCaptured = 0xffff;  // the next number is 1 again

// Of a mismatch: what the other rank called, and what this one.
struct Difference {
  Signature theirs, ours;
};

// The words of a rank's line in the control segment. Writer: the rank, at the begin of a collective. Readers: ranks that have
// waited in vain (Flags). A sequence lock without a counter: call is 0 while count is being written.
struct CallWords {
  uint64_t call;
  uint64_t count;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_SIGNATURE_H_
