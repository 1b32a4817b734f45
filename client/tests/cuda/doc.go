// Package cuda holds tests of the CUDA device with the driver for tests (client/device/cuda/fake), whose kernels are those of the GPU, compiled for the host: in one
// process with several ranks, and with a process for each rank.
//
// Tests of this process share the driver's contexts, and some calls of one thread invalidate a capture of another. So only tests whose ranks are
// processes, or that make no capture, are parallel.
package cuda
