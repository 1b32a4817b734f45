// Package alltoall defines MoE dispatch and combine, without the communication: which rank holds which expert (Placement), the
// layout of a rank's window (Layout), which token goes where (Routing), the results on every rank (Dispatch, Combine), and
// routings for measurements (Router, FromNPY).
//
// It is a plain, slow reference that tests and bench compare the client library with, so it must never call that library. It
// shares no memory, never waits, and reads no input except in FromNPY. It trusts no topk_idx and no file. A Config is checked
// before use.
//
// Symbols in shapes: R ranks (the world size), T max_tokens_per_rank, H hidden, E logical experts, K topk.
package alltoall
