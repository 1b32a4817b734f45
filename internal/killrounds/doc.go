// Package killrounds has tests only: real processes that are killed, stopped and left without a daemon, over and over.
//
// Each round starts the ranks of a group, lets them work on random checked operations, and takes some of them away at a
// random moment. Afterwards every rank that is left must have said who is missing, within seconds, and nothing of the group
// may be left in the daemon. In other groups the survivors go on with rounds of MoE, whose results and reports must say who is
// missing. `go test` plays a few hundred rounds, `make soak` ten thousand.
package killrounds
