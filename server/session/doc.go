// Package session serves connections: it accepts them, checks who is at the other end (peer credentials, Hello, pidfd),
// queues messages to the client, and reports the client's messages and its end.
//
// It owns sockets, pidfds and the queues. It must never interpret a message but Hello: a Family does that. It trusts the
// daemon's own user and root, as the kernel names them, and nothing that they send.
package session
