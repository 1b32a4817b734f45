// Package cuda calls NVIDIA's driver from Go: devices, streams, events, memory, graphs. It is what the tools need to drive a comm whose
// device is CUDA, and to time it.
//
// The driver's library, libcuda.so.1, is opened at run time (Load). A program that imports this package builds and runs without CUDA;
// only Load fails there. No CUDA header is needed: driver.h declares the few functions that are used.
//
// It owns the handles that it creates. It must never start a kernel, exit, or wait without a context.Context that can end the wait.
// It trusts the driver. Objects may be used from any goroutine, one at a time: every call makes its device's context current on the
// thread that runs it, and restores the one before.
package cuda
