// Which GPU a comm runs on.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/devices.h"

namespace railhead::client::cuda {

namespace {

// The device of the calling thread's current context, as for any call of PyTorch or the CUDA runtime.
bool currentDevice(const Driver& driver, CUdevice* device, Failure* why) {
  CUcontext current = nullptr;
  if (!driver.cuCtxGetCurrent(why, &current)) return false;
  if (current == nullptr) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "no device was named, and this thread has no current one: set device_ordinal or device_uuid of the config, or "
                   "call torch.cuda.set_device (cudaSetDevice) first, e.g. with LOCAL_RANK");
  }
  return driver.cuCtxGetDevice(why, device);
}

bool namedDevice(const Driver& driver, const rh_comm_config& c, CUdevice* device, Failure* why) {
  if (c.device_ordinal == -1 && c.device_uuid == nullptr) return currentDevice(driver, device, why);
  if (c.device_ordinal != -1 && c.device_uuid != nullptr) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "device_ordinal %d and device_uuid %.60s: give one of them", c.device_ordinal, c.device_uuid);
  }
  char number[16];
  snprintf(number, sizeof number, "%d", c.device_ordinal);
  return findDevice(driver, c.device_uuid != nullptr ? c.device_uuid : number, device, why);
}

// A caller's streams are of its current context, so that must be the one which the comm uses.
bool checkContext(const Driver& driver, CUdevice device, Failure* why) {
  CUcontext current = nullptr, primary = nullptr;
  CUdevice of = -1;
  if (!driver.cuCtxGetCurrent(why, &current)) return false;
  if (current == nullptr || driver.cuCtxGetDevice.call(&of) != CUDA_SUCCESS || of != device) return true;
  if (!driver.cuDevicePrimaryCtxRetain(why, &primary, device)) return false;
  driver.cuDevicePrimaryCtxRelease.call(device);
  return primary == current ||
         because(why, RH_ERR_UNSUPPORTED, "device %d: this thread's context is not the device's primary one, which the CUDA runtime and PyTorch use: make that current",
                 device);
}

bool find(const rh_comm_config& c, DevicePlace* place, Failure* why) {
  const Driver* driver = loadDriver(why);
  CUdevice device = -1;
  DeviceFacts facts;
  CUuuid uuid = {};
  if (driver == nullptr || !namedDevice(*driver, c, &device, why) || !describeDevice(*driver, device, &facts, why) ||
      !checkDevice(*driver, facts, why) || !checkContext(*driver, device, why) || !driver->cuDeviceGetUuid(why, &uuid, device)) {
    return false;
  }
  place->ordinal = device;
  static_assert(sizeof place->uuid == sizeof uuid.bytes, "a UUID");
  memcpy(place->uuid, uuid.bytes, sizeof uuid.bytes);
  place->multiprocessors = static_cast<uint32_t>(facts.multiprocessors);
  place->architecture = static_cast<uint32_t>(facts.capability);
  return true;
}

}  // namespace

rh_result locate(const rh_comm_config& config, WorldRank rank, DevicePlace* place) {
  Failure why;
  if (find(config, place, &why)) return RH_OK;
  return fail(why.result, "comm_init: rank %d: %s", number(rank), why.text);
}

}  // namespace railhead::client::cuda
