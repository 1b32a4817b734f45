// How memory that an engine owns can be shared: each allocator's memory, pieces of it, and what is no memory of the device.
#include <unistd.h>

#include "check.h"
#include "device/cuda/context.h"
#include "device/cuda/host_memory.h"
#include "device/cuda/opened.h"
#include "device/cuda/shareable.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

namespace {

Fake* fake;
const Driver* driver;
Context context, other;

// Memory of cuMemCreate, as an engine's allocator makes it: pieces mapped one after the other.
struct Mapped {
  CUdeviceptr base = 0;
  int pieces;
  Mapped(int n, CUmemAllocationHandleType types) : pieces(n) {
    Failure why;
    CHECK(driver->cuMemAddressReserve(&why, &base, static_cast<size_t>(n) * kGranule, 0, 0, 0));
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = types;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device};
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (int i = 0; i < n; i++) {
      CUmemGenericAllocationHandle handle;
      const CUdeviceptr at = base + static_cast<uint64_t>(i) * kGranule;
      CHECK(driver->cuMemCreate(&why, &handle, kGranule, &properties, 0) && driver->cuMemMap(&why, at, kGranule, 0, handle, 0));
      CHECK(driver->cuMemSetAccess(&why, at, kGranule, &access, 1) && driver->cuMemRelease(&why, handle));
    }
  }
  ~Mapped() {
    Failure why;
    CHECK(driver->cuMemUnmap(&why, base, static_cast<size_t>(pieces) * kGranule) && driver->cuMemAddressFree(&why, base, static_cast<size_t>(pieces) * kGranule));
  }
};

#define CANNOT(pointer, bytes, word)                                                                         \
  do {                                                                                                       \
    Shareable s;                                                                                             \
    SUCCEEDS(findShareable(context, pointer, bytes, &s, &why));                                              \
    if (s.by != ShareBy::kNothing || s.fd != -1 || strstr(s.reason, word) == nullptr) {                      \
      fprintf(stderr, "%s:%d: by %d, reason \"%s\", want \"%s\"\n", __FILE__, __LINE__, static_cast<int>(s.by), s.reason, word); \
      abort();                                                                                               \
    }                                                                                                        \
  } while (0)

void mapped() {
  Mapped memory(3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  Shareable s;
  const CUdeviceptr tensor = memory.base + kGranule + 512;
  SUCCEEDS(findShareable(context, tensor, kGranule - 512, &s, &why));
  CHECK(s.by == ShareBy::kDescriptor && s.offset == 512 && s.allocationBytes == kGranule && s.fd >= 0);
  Opened opened, again;
  SUCCEEDS(openDescriptor(other, s.fd, s.allocationBytes, &opened, &why));
  SUCCEEDS(openDescriptor(other, s.fd, s.allocationBytes, &again, &why));
  CHECK(opened.base != again.base);
  reinterpret_cast<volatile char*>(opened.base)[s.offset] = 7;
  CHECK(*reinterpret_cast<volatile char*>(tensor) == 7 && reinterpret_cast<volatile char*>(again.base)[s.offset] == 7);
  SUCCEEDS(closeOpened(other, &opened, &why));
  SUCCEEDS(closeOpened(other, &again, &why));
  FAILS(openDescriptor(other, s.fd, s.allocationBytes + 1, &opened, &why), RH_ERR_PROTOCOL, "no multiple of 2097152");
  FAILS(openDescriptor(other, s.fd, 0, &opened, &why), RH_ERR_PROTOCOL, "0 bytes");
  FAILS(openDescriptor(other, s.fd, 2 * kGranule, &opened, &why), RH_ERR_SYSTEM, "cuMemMap");
  FAILS(openDescriptor(other, STDIN_FILENO, kGranule, &opened, &why), RH_ERR_SYSTEM, "cuMemImportFromShareableHandle");
  CHECK(opened.base == 0);
  // Of memory that was opened here no descriptor can be made.
  SUCCEEDS(openDescriptor(context, s.fd, s.allocationBytes, &opened, &why));
  close(s.fd);
  CANNOT(opened.base, 100, "memory of another process");
  SUCCEEDS(closeOpened(context, &opened, &why));
  CANNOT(tensor, kGranule, "several allocations (this one ends after 2096640)");
  CANNOT(memory.base, 3 * kGranule, "expandable_segments");

  Mapped unshared(1, CU_MEM_HANDLE_TYPE_NONE);
  CANNOT(unshared.base, 100, "without a POSIX descriptor (requestedHandleTypes is 0)");
}

void allocated() {
  Failure why;
  const Current current(context, &why);
  CUdeviceptr plain, managed, pool;
  CHECK(driver->cuMemAlloc(&why, &plain, 10000));
  CHECK(fake->cuMemAllocManaged(&managed, 4096, 1) == CUDA_SUCCESS && fake->cuMemAllocAsync(&pool, 4096, nullptr) == CUDA_SUCCESS);
  Shareable s, again;
  SUCCEEDS(findShareable(context, plain + 9999, 1, &s, &why));
  CHECK(s.by == ShareBy::kIpc && s.offset == 9999 && s.allocationBytes == 10000 && s.fd == -1);
  SUCCEEDS(findShareable(context, plain, 10000, &again, &why));
  CHECK(memcmp(&s.handle, &again.handle, sizeof s.handle) == 0);
  FAILS(findShareable(context, plain + 9999, 2, &s, &why), RH_ERR_INVALID_ARGUMENT, "only the first 1 are allocated");
  CANNOT(managed, 100, "cudaMallocManaged");
  CANNOT(pool, 100, "cudaMallocAsync");
  FAILS(findShareable(other, plain, 1, &s, &why), RH_ERR_INVALID_ARGUMENT, "memory of device 0, and the comm is on device 1");
  int onStack = 0;
  FAILS(findShareable(context, reinterpret_cast<CUdeviceptr>(&onStack), 4, &s, &why), RH_ERR_INVALID_ARGUMENT, "no memory of CUDA");
  void* pinned = allocateHost(context, 4096, &why);
  CHECK(pinned != nullptr && *static_cast<int*>(pinned) == 0);
  FAILS(findShareable(context, reinterpret_cast<CUdeviceptr>(pinned), 4, &s, &why), RH_ERR_INVALID_ARGUMENT, "pinned memory of the host");
  SUCCEEDS(freeHost(context, pinned, &why));
  fake->fail("cuIpcGetMemHandle", 1, CUDA_ERROR_NOT_SUPPORTED);  // as under MIG or in some virtual machines
  CANNOT(plain, 100, "cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED (801)");
  fake->fail("cuPointerGetAttribute", 1, CUDA_ERROR_UNKNOWN);
  FAILS(findShareable(context, plain, 1, &s, &why), RH_ERR_SYSTEM, "cuPointerGetAttribute: CUDA_ERROR_UNKNOWN (999)");
  CHECK(driver->cuMemFree(&why, plain) && driver->cuMemFree(&why, managed) && driver->cuMemFree(&why, pool));
}

}  // namespace

int main() {
  static Fake hooks;
  fake = &hooks;
  Failure loading;
  driver = loadDriver(&loading);
  CHECK(driver != nullptr);
  SUCCEEDS(openContext(driver, 0, &context, &why));
  SUCCEEDS(openContext(driver, 1, &other, &why));
  const int descriptors = openDescriptors();
  mapped();
  allocated();
  CHECK(openDescriptors() == descriptors);
  SUCCEEDS(closeContext(&context, &why));
  SUCCEEDS(closeContext(&other, &why));
  const fake_cuda_account none = {};
  CHECK(same(none, fake->account()));
  return 0;
}
