// The GPUs that this process may use. The driver numbers them from 0, after CUDA_VISIBLE_DEVICES has selected and ordered them by numbers,
// UUIDs or MIG ids; so other processes may number them differently, and only the UUID says which GPU it is.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_DEVICES_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_DEVICES_H_

#include "device/cuda/driver.h"

namespace railhead::client::cuda {

struct DeviceFacts {
  CUdevice device;
  char name[96];
  char uuid[40];      // 8-4-4-4-12 hexadecimal digits in lower case, without a prefix; of a MIG device that of the instance
  char pciBusId[16];  // domain:bus:device.function; the instances of one GPU have the same
  int capability;     // compute capability: 10 * major + minor
  int multiprocessors;
  size_t memoryBytes;
};

// Finds the device that a name means: a number, "GPU-<uuid>" or "MIG-<uuid>". A UUID may be cut short if it remains unique.
bool findDevice(const Driver& driver, const char* name, CUdevice* device, Failure* why);

bool describeDevice(const Driver& driver, CUdevice device, DeviceFacts* facts, Failure* why);

// Whether the device has what the library needs; *why names what it lacks.
bool checkDevice(const Driver& driver, const DeviceFacts& facts, Failure* why);

// The device of a UUID as describeDevice writes it. False: it is not visible in this process, which is no failure.
bool deviceOfUuid(const Driver& driver, const char* uuid, CUdevice* device);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_DEVICES_H_
