// Package symm owns the symmetric memory of one node: the address space of
// heaps, the CPU pages that back it, and the teams of ranks that share it.
//
// It trusts its caller to be one process that knows the whole group. It checks
// all numbers: every size, offset and rank, before anything changes. A process
// that is given a segment's descriptor is trusted with its contents, since it
// can store anywhere in it and can punch holes in it. It is not trusted with
// the size: seals fix that, so that no process can make another one die of
// SIGBUS by truncating a file that both have mapped.
//
// The parts, one a file:
//
//   - Arena allocates ranges of an address space. Heap is the Arena of a
//     group's windows. There is one Heap for all ranks, so a window has the
//     same offset on every rank.
//   - Segment is the CPU memory of one rank: a memfd of the heap's maximum size,
//     sparse until committed. Mapping is a mapping of it in this process.
//   - Team numbers the ranks of a set.
//
// Arena, Heap and Team are plain values with no I/O and no locks: the owner of
// the group serialises the calls. Segment and Mapping are safe for concurrent
// use, but other processes access the memory of a Mapping at the same time:
// only sync/atomic orders these accesses.
//
// The package must never pick an algorithm, use a socket, or touch GPU memory.
// An allocation must not move or change its size, since captured graphs hold
// its address. Raw memory is handled in *_unsafe.go only.
package symm
