// Package membership decides who belongs to which group, when a group forms, what a collective set-up call waits for and
// what a death means. It is a state machine without I/O: events and a time go in, actions come out.
//
// It owns sessions' memberships, groups, window offsets and deadlines. It must never touch a socket, a file descriptor,
// shared memory, a clock or a goroutine: package group does that. It trusts that messages have been checked by package
// wire, and nothing else about clients. It is not safe for concurrent use.
package membership
