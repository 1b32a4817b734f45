// Package server is the node daemon, put together: sockets and their locks, the core's goroutine, sessions, groups, metrics and
// the admin endpoint.
//
// It owns the daemon's beginning and end, and the one goroutine (core.go) on which sessions come and go and groups change; every
// other goroutine belongs to a listener, a session or a group, and ends with it. It must never touch a rank's data: after set-up
// nothing of a collective passes through the daemon. It trusts its own user and root, and none of their messages.
package server
