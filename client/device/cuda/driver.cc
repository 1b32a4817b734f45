#include "device/cuda/driver.h"

#include <dlfcn.h>

#include "base/settings.h"

namespace railhead::client::cuda {

namespace {

constexpr const char* kVariable = "RAILHEAD_CUDA_LIBRARY";

// The driver of the process. Writer: the first thread that has loaded and initialized one (release). Readers: every call (acquire).
const Driver* loaded = nullptr;

// cuGetProcAddress of CUDA 12.0, whose name in the library is this one for good.
using GetProcAddress = CUresult (*)(const char* name, void** address, int version, uint64_t flags, CUdriverProcAddressQueryResult* found);
constexpr const char* kGetProcAddress = "cuGetProcAddress_v2";

const char* path() {
  const char* named = environment(kVariable);
  return named != nullptr ? named : "libcuda.so.1";
}

bool lookUp(GetProcAddress getProcAddress, const char* name, int version, void** address, Failure* why) {
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  *address = nullptr;
  const CUresult code = getProcAddress(name, address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
  if (code == CUDA_SUCCESS && *address != nullptr) return true;
  return because(why, RH_ERR_UNSUPPORTED, "%s: the driver has no %s of CUDA %d.%d (error %u, search result %u): update the NVIDIA driver", path(), name,
                 version / 1000, version % 1000 / 10, static_cast<unsigned>(code), static_cast<unsigned>(found));
}

// Refuses a driver that is too old. That function has been in every driver, and needs no initialization.
bool checkVersion(void* library, int* version, Failure* why) {
  using GetVersion = CUresult (*)(int*);
  const auto getVersion = reinterpret_cast<GetVersion>(dlsym(library, "cuDriverGetVersion"));
  if (getVersion == nullptr) return because(why, RH_ERR_UNSUPPORTED, "%s is not NVIDIA's driver library: it has no cuDriverGetVersion; check %s", path(), kVariable);
  if (const CUresult code = getVersion(version); code != CUDA_SUCCESS) return driverFailed(nullptr, "cuDriverGetVersion", code, why);
  if (*version >= kOldestDriver) return true;
  return because(why, RH_ERR_UNSUPPORTED, "%s is of a driver for CUDA %d.%d: update the NVIDIA driver to 550 (CUDA %d.%d) or newer", path(), *version / 1000,
                 *version % 1000 / 10, kOldestDriver / 1000, kOldestDriver % 1000 / 10);
}

bool fill(void* library, Driver* driver, Failure* why) {
  if (!checkVersion(library, &driver->version, why)) return false;
  const auto getProcAddress = reinterpret_cast<GetProcAddress>(dlsym(library, kGetProcAddress));
  if (getProcAddress == nullptr) return because(why, RH_ERR_UNSUPPORTED, "%s has no %s: update the NVIDIA driver", path(), kGetProcAddress);
  void* address = nullptr;
#define RAILHEAD_CUDA_LOOK_UP(name, release, parameters)                         \
  if (!lookUp(getProcAddress, #name, release, &address, why)) return false;      \
  driver->name.call = reinterpret_cast<CUresult(*) parameters>(address);
  RAILHEAD_CUDA_FUNCTIONS(RAILHEAD_CUDA_LOOK_UP)
#undef RAILHEAD_CUDA_LOOK_UP
  return true;
}

// Opens the library and makes a driver of it.
Driver* open(Failure* why) {
  void* library = dlopen(path(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    because(why, RH_ERR_UNSUPPORTED, "no CUDA driver: %s; ranks on GPUs need the NVIDIA driver 550 or newer, in a container with the GPUs given to it; %s may name the library",
            dlerror(), kVariable);
    return nullptr;
  }
  auto* driver = new Driver();
  if (driver == nullptr) because(why, RH_ERR_OUT_OF_MEMORY, "no memory for the CUDA driver's table of functions");
  if (driver != nullptr && fill(library, driver, why)) return driver;
  delete driver;
  dlclose(library);
  return nullptr;
}

}  // namespace

const Driver* loadedDriver() { return __atomic_load_n(&loaded, __ATOMIC_ACQUIRE); }

// No lock: the child of a fork may call it, and another thread of the parent would have held the lock. Two threads may open the library at
// once, which gives both the same one.
const Driver* loadDriver(Failure* why) {
  if (const Driver* before = loadedDriver()) return before;
  Driver* driver = open(why);
  if (driver == nullptr) return nullptr;
  // The library stays open after a failure: it may have started threads.
  if (const CUresult code = driver->cuInit.call(0); code != CUDA_SUCCESS) {
    driverFailed(driver, "cuInit", code, why);
    delete driver;
    return nullptr;
  }
  const Driver* first = nullptr;
  if (__atomic_compare_exchange_n(&loaded, &first, driver, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return driver;
  delete driver;
  return first;
}

}  // namespace railhead::client::cuda
