// Package membership decides which ranks are in which group, when a group forms, which ranks a collective set-up call
// waits for, and what the death of a rank does. It is a state machine without I/O: events and a time go in, actions come out.
//
// It owns sessions' memberships, groups, window offsets and deadlines. It must never touch a socket, a file descriptor,
// shared memory, a clock or a goroutine: package group does that. It trusts that package wire has checked each message, and
// trusts clients in nothing else. It is not safe for concurrent use.
package membership
