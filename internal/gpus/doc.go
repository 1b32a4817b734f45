// Package gpus reads the GPUs of this machine from NVIDIA's management library (NVML): numbers, UUIDs, slices, NVLinks and what they lead to, access
// between peers, the fabric. Machine adds them to the topology of /sys.
//
// It reads only: it must never change a setting of a GPU, create a CUDA context or keep the library open. Where there is no NVML, there is
// a sentence that says so, and everything else works. It trusts the library, but bounds what becomes part of a topology
// (topo.AddDriver). A function that an older library lacks leaves out what it would tell.
package gpus
