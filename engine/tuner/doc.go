// Package tuner decides by calculation or by measurement which algorithm an operation should take: the α-β cost model and
// NCCL's, predictions for a described machine, the grammar that forces algorithms, and tables of what was measured.
//
// It owns the formulas, the machine description, the tuning table and its file. It must never run a collective, know what
// this machine is, or decide for a single rank: the daemon gives every rank of a group the same answer.
// It trusts nothing that it reads: machine files, tables and forcing texts come from anywhere, so their sizes and
// numbers are bounded before they are used. Names of collectives and algorithms are given to it where they depend on what
// has been built.
//
// Units are in names: times are microseconds, bandwidths GB/s with GB = 1e9 bytes, so that 1 GB/s is 1000 bytes a
// microsecond. docs/tuning.md has the formulas and file formats with examples.
package tuner
