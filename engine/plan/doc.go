// Package plan decides which algorithm runs: for each collective that has a choice, by the bytes of its buffers.
//
// It owns the default thresholds, which algorithms add in the same order, and how a forced choice, a measured table and
// the defaults go together. Its result is a plain table that all ranks of a group share. It must never measure, and has no
// I/O.
package plan
