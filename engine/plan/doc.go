// Package plan decides which algorithm each collective of a group runs, by the size of its buffers.
//
// It combines three inputs: algorithms that a user forces or forbids, a measured table, and default thresholds, which it owns. It never
// mixes algorithms that add in different orders. It also owns the sizes, spin times and limits by which a group on CPUs waits and moves
// data. Its result is a plain table that all ranks of a group share. It must never measure, and it has no I/O.
package plan
