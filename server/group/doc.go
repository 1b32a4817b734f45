// Package group runs this node's groups: it carries out the outputs of the machine of package membership, with memory, leases and
// messages.
//
// It owns the groups' memory (control segments, mapped here, and heaps, which the daemon never maps), the ledgers, the choice
// of algorithms, the watchers of leases, the clients' descriptors, and the reading of shared memory for reports.
// It must never touch a rank's data, and never decide which ranks are in a group. It trusts nothing that it reads from a
// control segment: ranks can write there.
//
// Everything runs on the core's goroutine, except where a function says otherwise.
package group
