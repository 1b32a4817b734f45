// Package cudadriver holds tests of the client's CUDA folder on the fake driver (client/device/cuda/fake): programs in C++ (folder c), also with
// sanitizers, and the comparison of its declarations with CUDA's header.
package cudadriver
