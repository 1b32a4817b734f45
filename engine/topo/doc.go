// Package topo describes the topology of a machine: its cores, GPUs and network ports, the paths between them, and good orders
// of ranks for rings and trees.
//
// It trusts nothing that it reads. A file that is missing in /sys leaves a gap in the graph, and an invalid one is a warning. For a
// user's file, XML or JSON, an error names the element and the wrong value. The numbers of nodes, links and bytes are bounded before
// use.
//
// The parts, one a file:
//
//   - Graph has nodes, nested (a core in a cache, a cache in a NUMA node), and links with a kind and a bandwidth.
//   - Paths finds the best path between any two devices, in NCCL's terms.
//   - ReadMachine makes a graph of /sys; ReadXML and WriteXML speak NCCL's dialect, ReadJSON and WriteJSON our own.
//   - Rings searches rings of near neighbours over devices, RingOrder one over ranks on CPUs; DoubleTree makes a double binary tree.
//   - Fingerprint names the model of a machine: machines of one model have the same.
//   - WriteText and WriteSVG show a graph.
//
// Graphs are plain values without locks. The package must never open a device, run a command or measure: bandwidths are nominal.
// Measurements are engine/tuner's.
package topo
