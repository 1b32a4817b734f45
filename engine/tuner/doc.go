// Package tuner has the inputs of the choice of an algorithm: cost models (α-β and NCCL's) with predictions for a described machine, the
// grammar of forced algorithms, and tuning tables, which list the fastest measured algorithms.
//
// It owns the formulas, the machine description, the tuning table and its file. It must never run a collective or read this
// machine's topology, and it must never decide for a single rank: the daemon gives all ranks of a group the same answer.
// It trusts nothing that it reads. Machine files, tables and forcing texts may come from anywhere, so their sizes and
// numbers are bounded before use. The caller passes the names of collectives and algorithms that exist.
//
// Units are in names: times are microseconds, bandwidths GB/s with GB = 1e9 bytes, so that 1 GB/s is 1000 bytes a
// microsecond. docs/tuning.md has the formulas and file formats with examples.
package tuner
