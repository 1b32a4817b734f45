// Package symm owns the symmetric memory of one node: which addresses of a
// heap are taken, the CPU pages beneath them, and which ranks share them.
//
// It trusts its caller to be one process that knows the whole group, and it
// trusts none of the caller's numbers: every size, offset and rank is checked
// before anything changes. The processes that are given a segment's descriptor
// are trusted with its contents, since each of them may store anywhere in it
// and may punch holes in it; they are not trusted with its size, which the
// seals hold fixed, so that no process can make another one die of SIGBUS by
// truncating what both have mapped.
//
// The parts, one a file:
//
//   - Arena gives out ranges of an address space. Heap is an Arena over the
//     heap of a group; its windows lie at the same offset on every rank because
//     one Heap speaks for all of them.
//   - Segment is the CPU memory of one rank: a memfd of the heap's maximum size,
//     sparse until committed. Mapping is a view of it in this process.
//   - Team numbers the ranks that take part in something together.
//
// Arena, Heap and Team are plain values with no I/O and no locks: whoever owns
// the group serialises the calls. Segment and Mapping are safe for concurrent
// use, except that memory seen through a Mapping is shared with other processes
// and is ordered by sync/atomic alone.
//
// It must never pick an algorithm, speak to a socket, or touch GPU memory, and
// no address given out may move or change size while it is allocated: captured
// graphs hold it. Raw memory is handled in *_unsafe.go only.
package symm
