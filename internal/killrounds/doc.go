// Package killrounds has tests only: in many rounds, real processes are killed or stopped, or their daemon is.
//
// Each round starts the ranks of a group, lets them run random checked operations, and kills or stops some of them at a random
// moment. Every survivor must report within seconds which ranks are missing, and the daemon must keep nothing of the group. In
// other groups the survivors go on with MoE, whose results and reports must name the missing ranks. `go test` plays 30 rounds,
// `.ci/run deep` 100, `make soak` ten thousand.
package killrounds
