// Package cuda holds tests of the CUDA device with the driver for tests (client/device/cuda/fake), whose kernels are those of the GPU, compiled for the host: in one
// process with several ranks, and with a process for each rank.
package cuda
