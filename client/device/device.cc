#include "device/device.h"

namespace railhead::client {

namespace {
// Indexed by kind. addDevice writes with release; deviceOf reads with acquire.
const Device* devices[kDeviceKinds] = {&kCpuDevice, &kCudaDevice};
}  // namespace

const Device* deviceOf(uint32_t kind) { return kind < kDeviceKinds ? __atomic_load_n(&devices[kind], __ATOMIC_ACQUIRE) : nullptr; }

void addDevice(const Device* device) { __atomic_store_n(&devices[device->kind], device, __ATOMIC_RELEASE); }

}  // namespace railhead::client
