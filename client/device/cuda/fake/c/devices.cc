// Devices and their primary contexts.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "device/cuda/fake/c/fake.h"

namespace railhead::fake {

namespace {

constexpr int kMostDevices = 16;

int machineDevices() { return static_cast<int>(environmentNumber("RAILHEAD_FAKE_CUDA_DEVICES", 2)); }

// The same in every process of the machine.
CUuuid uuidOf(int machineDevice) {
  CUuuid u = {{'\xfa', '\x4e', '\xc0', '\xda'}};
  u.bytes[6] = 0x40;
  u.bytes[15] = static_cast<char>(machineDevice + 1);
  return u;
}

std::string hex(const CUuuid& uuid) {
  std::string text;
  for (int i = 0; i < 16; i++) {
    char byte[4];
    snprintf(byte, sizeof byte, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", static_cast<unsigned char>(uuid.bytes[i]));
    text += byte;
  }
  return text;
}

// The device of the machine that an entry of CUDA_VISIBLE_DEVICES names; -1 = none.
int named(const std::string& entry) {
  if (entry.rfind("GPU-", 0) == 0 || entry.rfind("MIG-", 0) == 0) {
    for (int i = 0; i < machineDevices(); i++) {
      if (strncasecmp(hex(uuidOf(i)).c_str(), entry.c_str() + 4, entry.size() - 4) == 0) return i;
    }
    return -1;
  }
  char* end = nullptr;
  const long n = strtol(entry.c_str(), &end, 10);
  return end != entry.c_str() && n >= 0 && n < machineDevices() ? static_cast<int>(n) : -1;
}

// The machine's devices that this process sees, in its order. What follows an entry that names none is not seen.
std::vector<int> readVisible() {
  std::vector<int> all;
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int i = 0; i < machineDevices(); i++) all.push_back(i);
    return all;
  }
  std::string rest = list;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const int device = named(rest.substr(0, comma));
    if (device < 0) break;
    all.push_back(device);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return all;
}

std::vector<int> visible;  // set by cuInit
CUctx_st contexts[kMostDevices];
thread_local std::vector<CUcontext> stack;

int attributeOf(CUdevice_attribute attribute, CUdevice device) {
  // RAILHEAD_FAKE_CUDA_ATTRIBUTES=number=value,...
  const std::string changed = "," + std::string(environment("RAILHEAD_FAKE_CUDA_ATTRIBUTES", ""));
  const std::string key = "," + std::to_string(static_cast<unsigned>(attribute)) + "=";
  if (const size_t at = changed.find(key); at != std::string::npos) return atoi(changed.c_str() + at + key.size());
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return static_cast<int>(environmentNumber("RAILHEAD_FAKE_CUDA_MULTIPROCESSORS", 132));
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return machineOrdinal(device) + 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:  // it says so where creating one is refused, as seen
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return 1;
    default: return 0;
  }
}

}  // namespace

int deviceCount() { return static_cast<int>(visible.size()); }
bool isDevice(CUdevice device) { return device >= 0 && device < deviceCount(); }
int machineOrdinal(CUdevice device) { return visible[static_cast<size_t>(device)]; }
CUcontext current() { return stack.empty() ? nullptr : stack.back(); }

// RAILHEAD_FAKE_CUDA_PEERS: a row for each device of the machine, with 1 for each other one whose memory it may use, as in 01,10.
bool reaches(int machineDevice, int machinePeer) {
  const char* rows = environment("RAILHEAD_FAKE_CUDA_PEERS", nullptr);
  if (rows == nullptr || machineDevice == machinePeer) return true;
  for (int row = 0; row < machineDevice && rows != nullptr; row++) {
    rows = strchr(rows, ',');
    if (rows != nullptr) rows++;
  }
  return rows != nullptr && static_cast<size_t>(machinePeer) < strcspn(rows, ",") && rows[machinePeer] == '1';
}

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (machineDevices() > kMostDevices) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(world);
  visible = readVisible();
  for (int i = 0; i < deviceCount(); i++) contexts[i].device = i;
  return visible.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

namespace {
struct Text {
  CUresult code;
  const char* name;
  const char* text;
};
const Text* textOf(CUresult code) {
  static const Text kTexts[] = {
      {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
      {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
      {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
      {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
      {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
      {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
      {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
      {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
      {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
      {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
      {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
      {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
      {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
      {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
      {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
      {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
      {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
      {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
  };
  for (const Text& t : kTexts) {
    if (t.code == code) return &t;
  }
  return nullptr;
}
}  // namespace

CUresult cuGetErrorName(CUresult error, const char** name) {
  const Text* t = textOf(error);
  *name = t != nullptr ? t->name : nullptr;
  return t != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const Text* t = textOf(error);
  *text = t != nullptr ? t->text : nullptr;
  return t != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return isDevice(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetCount(int* count) {
  *count = deviceCount();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = uuidOf(machineOrdinal(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  if (!isDevice(device) || bytes <= 0) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, static_cast<size_t>(bytes), "fake device %d", machineOrdinal(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attributeOf(attribute, device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
  if (!isDevice(device) || bytes < 13) return CUDA_ERROR_INVALID_VALUE;
  snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", machineOrdinal(device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (!isDevice(device) || !isDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && reaches(machineOrdinal(device), machineOrdinal(peer)) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination) {
  if (!isDevice(source) || !isDevice(destination) || source == destination) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && reaches(machineOrdinal(source), machineOrdinal(destination)) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard<std::mutex> lock(world);
  contexts[device].retained++;
  account.contexts++;
  *context = &contexts[device];
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard<std::mutex> lock(world);
  if (contexts[device].retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  contexts[device].retained--;
  account.contexts--;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current()->device;
  return CUDA_SUCCESS;
}

}  // namespace railhead::fake
