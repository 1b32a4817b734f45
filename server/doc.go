// Package server is the node daemon: sessions over a unix socket, groups and their memory, leases, the admin endpoint
// and metrics.
//
// It owns everything that is shared between the ranks of a node: descriptors, the control segments, deadlines of set-up
// calls, and the verdict that a rank is dead. It must never touch a rank's data: after set-up nothing of a collective
// passes through it. It trusts its own user and root (peer credentials), but none of their messages, and nothing it
// reads from a control segment.
//
// One goroutine (core.go) owns the state machine of package membership; every other goroutine belongs to a listener, a
// session or a group, and ends with it.
package server
