// Package alltoall is what is known about MoE dispatch and combine without any communication: which rank holds which expert
// (Placement), how large a rank's window is (Layout), which token goes where (Routing), what every rank must receive and get
// back (Dispatch, Combine), and routings to measure with (Router, FromNPY).
//
// It owns those definitions and nothing that lives: no memory is shared, nothing waits, and the only input is FromNPY's. It must
// never call the client library, since tests and bench compare that with what is computed here, slowly and plainly. It trusts
// no topk_idx and no file; a Config is checked before it is used.
//
// Names of shapes: R ranks (the world size), T max_tokens_per_rank, H hidden, E logical experts, K topk.
package alltoall
