// Package proxy is what `railhead proxy` runs: it maps the memory of the agents of a node, takes their transfers from their rings, moves the
// bytes, and checks that they may be moved.
//
// An agent is a process of an engine that has a name. It registers regions and caches, lets other agents use blocks of them (kvxfer/grant), and
// reads and writes blocks of others. All checks are made on the side of the memory's owner. A transfer is cut into pieces, each some blocks of a
// layer; its owner's grant is opened for each piece and closed after it (kvxfer/transfer has the states).
//
// It trusts the daemon, which says who an agent is, and no agent: what one writes into its rings and messages is bounded, and ends at
// most that agent.
package proxy
