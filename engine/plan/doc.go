// Package plan decides which algorithm each collective of a group runs, by the size of its buffers.
//
// It combines three inputs: algorithms that a user forces or forbids, a measured table, and default thresholds, which it owns.
// It also owns what decides how a group on CPUs waits and moves data: sizes, spin times, limits. It never mixes algorithms that add in different orders. Its result is a plain table that all ranks of a group share. It must
// never measure, and it has no I/O.
package plan
