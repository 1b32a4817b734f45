// Package topo knows how a machine is wired: which cores, GPUs and network ports it has, what lies between any two of them,
// and in which order ranks on them should pass data on.
//
// It trusts nothing that it reads. /sys may lack files (then the graph lacks what they would say) and may hold nonsense (then
// the graph has a warning); a file of a user's, XML or JSON, is refused with the element and the value that is wrong. The number
// of nodes, links and bytes is bounded before they are used.
//
// The parts, one a file:
//
//   - Graph is nodes, each within another (a core in a cache, a cache in a NUMA node), and links with a kind and a bandwidth.
//   - Paths finds the best path between any two devices, in NCCL's terms.
//   - ReadMachine makes a graph of /sys; ReadXML and WriteXML speak NCCL's dialect, ReadJSON and WriteJSON our own.
//   - Rings searches rings of near neighbours, RingOrder one of ranks on CPUs; DoubleTree gives the two trees.
//   - Fingerprint names what a machine is made of, the same on all machines of its model.
//   - WriteText and WriteSVG show a graph.
//
// Graphs are plain values without locks. The package must never open a device, run a command or measure anything: bandwidths are
// those of the standard or of the vendor, and what was measured belongs to the tuner.
package topo
