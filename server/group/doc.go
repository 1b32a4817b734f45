// Package group holds this node's groups: the machine of package membership decides, and this package carries out what it
// decides, with memory, leases and messages.
//
// It owns the groups' memory (control segments, mapped here, and heaps, which the daemon never maps), the ledgers, the choice
// of algorithms, the watchers of leases, the descriptors that clients have sent, and what reports read from shared memory.
// It must never touch a rank's data, and never decide who belongs to which group. It trusts nothing that it reads from a
// control segment: ranks can write there.
//
// Everything runs on the core's goroutine, except where a function says otherwise.
package group
