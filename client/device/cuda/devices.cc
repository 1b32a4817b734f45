#include "device/cuda/devices.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/settings.h"

namespace railhead::client::cuda {

namespace {

constexpr size_t kUuidText = sizeof(DeviceFacts::uuid);

void format(const CUuuid& uuid, char out[kUuidText]) {
  int n = 0;
  for (int i = 0; i < 16; i++) {
    const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
    n += snprintf(out + n, kUuidText - static_cast<size_t>(n), "%s%02x", dash ? "-" : "", static_cast<unsigned char>(uuid.bytes[i]));
  }
}

bool uuidOf(const Driver& driver, CUdevice device, char out[kUuidText], Failure* why) {
  CUuuid uuid = {};
  if (!driver.cuDeviceGetUuid(why, &uuid, device)) return false;
  format(uuid, out);
  return true;
}

bool beginsWith(const char* text, const char* prefix) {
  for (; *prefix != '\0'; text++, prefix++) {
    if (tolower(static_cast<unsigned char>(*text)) != tolower(static_cast<unsigned char>(*prefix))) return false;
  }
  return true;
}

// The device whose UUID begins with prefix.
bool findByUuid(const Driver& driver, const char* name, const char* prefix, CUdevice* device, Failure* why) {
  int count = 0;
  if (!driver.cuDeviceGetCount(why, &count)) return false;
  int matches = 0;
  char seen[256] = "";
  size_t length = 0;
  for (int i = 0; i < count; i++) {
    CUdevice candidate;
    char uuid[kUuidText];
    if (!driver.cuDeviceGet(why, &candidate, i) || !uuidOf(driver, candidate, uuid, why)) return false;
    if (length < sizeof seen) {
      const int n = snprintf(seen + length, sizeof seen - length, "%s%s", i > 0 ? ", " : "", uuid);
      length += n > 0 ? static_cast<size_t>(n) : 0;
    }
    if (!beginsWith(uuid, prefix)) continue;
    *device = candidate;
    matches++;
  }
  if (matches == 1) return true;
  return because(why, RH_ERR_INVALID_ARGUMENT, "device %.60s: %d of the %d GPUs of this process have that UUID: they are %s; CUDA_VISIBLE_DEVICES may hide others", name,
                 matches, count, count > 0 ? seen : "none");
}

bool attribute(const Driver& driver, CUdevice device, CUdevice_attribute of, int* value, Failure* why) {
  *value = 0;
  return driver.cuDeviceGetAttribute(why, value, of, device);
}

}  // namespace

bool findDevice(const Driver& driver, const char* name, CUdevice* device, Failure* why) {
  if (beginsWith(name, "MIG-GPU-")) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "device %.80s: MIG devices are named MIG-<uuid>, as `nvidia-smi -L` lists them", name);
  }
  if (beginsWith(name, "GPU-") || beginsWith(name, "MIG-")) return findByUuid(driver, name, name + 4, device, why);
  int count = 0;
  if (!driver.cuDeviceGetCount(why, &count)) return false;
  long ordinal;
  if (!parseInt(name, 0, 0x7fffffff, &ordinal)) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "device %.60s: a number, GPU-<uuid> or MIG-<uuid> was expected", name);
  }
  if (ordinal >= count) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "device %ld: this process has %d GPUs, numbered from 0; CUDA_VISIBLE_DEVICES may hide others", ordinal, count);
  }
  return driver.cuDeviceGet(why, device, static_cast<int>(ordinal));
}

bool describeDevice(const Driver& driver, CUdevice device, DeviceFacts* facts, Failure* why) {
  memset(facts, 0, sizeof *facts);
  facts->device = device;
  int major, minor;
  if (!driver.cuDeviceGetName(why, facts->name, sizeof facts->name, device) || !uuidOf(driver, device, facts->uuid, why) ||
      !driver.cuDeviceGetPCIBusId(why, facts->pciBusId, sizeof facts->pciBusId, device) || !driver.cuDeviceTotalMem(why, &facts->memoryBytes, device) ||
      !attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, why) ||
      !attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor, why) ||
      !attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts->multiprocessors, why)) {
    return prefix(why, "device %d: ", device);
  }
  facts->capability = 10 * major + minor;
  return true;
}

bool checkDevice(const Driver& driver, const DeviceFacts& facts, Failure* why) {
  constexpr int kOldest = 80;
  if (facts.capability < kOldest) {
    return because(why, RH_ERR_UNSUPPORTED, "device %d (%s) has compute capability %d.%d: %d.%d or newer is needed", facts.device, facts.name, facts.capability / 10,
                   facts.capability % 10, kOldest / 10, kOldest % 10);
  }
  constexpr struct {
    CUdevice_attribute attribute;
    const char* lacks;
  } kNeeded[] = {
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "no unified addresses"},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "no virtual memory management (cuMemCreate, cuMemMap): a vGPU profile or WSL may lack it"},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "no memory that can be shared by a POSIX descriptor: a vGPU profile or WSL may lack it"},
  };
  for (const auto& needed : kNeeded) {
    int value;
    if (!attribute(driver, facts.device, needed.attribute, &value, why)) return prefix(why, "device %d: ", facts.device);
    if (value == 0) return because(why, RH_ERR_UNSUPPORTED, "device %d (%s) has %s", facts.device, facts.name, needed.lacks);
  }
  return true;
}

bool deviceOfUuid(const Driver& driver, const char* uuid, CUdevice* device) {
  Failure ignored;
  int count = 0;
  if (!driver.cuDeviceGetCount(&ignored, &count)) return false;
  for (int i = 0; i < count; i++) {
    char own[kUuidText];
    if (driver.cuDeviceGet(&ignored, device, i) && uuidOf(driver, *device, own, &ignored) && strcmp(own, uuid) == 0) return true;
  }
  return false;
}

}  // namespace railhead::client::cuda
