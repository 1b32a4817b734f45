// How memory that an engine owns can be shared: each allocator's memory, pieces of it, and what is no memory of the device.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "descriptors.h"
#include "device/cuda/bundle.h"
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
    if (s.by != ShareBy::kNothing || s.allocations.count != 0 || strstr(s.reason, word) == nullptr) {                      \
      fprintf(stderr, "%s:%d: by %d, reason \"%s\", want \"%s\"\n", __FILE__, __LINE__, static_cast<int>(s.by), s.reason, word); \
      abort();                                                                                               \
    }                                                                                                        \
  } while (0)

// Writes in this process are seen through the descriptors of a bundle, and the bundle can be read any number of times.
void packed(const Shareable& s, const Mapped& memory) {
  int fd = -1;
  SUCCEEDS(pack(s.allocations, &fd, &why));
  for (int times = 0; times < 2; times++) {
    Bundle bundle;
    SUCCEEDS(unpack(fd, &bundle, &why));
    CHECK(bundle.count == memory.pieces);
    for (int i = 0; i < bundle.count; i++) {
      Opened opened;
      CHECK(bundle.bytes[i] == kGranule);
      SUCCEEDS(openDescriptor(other, bundle.fds[i], kGranule, &opened, &why));
      const uint64_t offset = static_cast<uint64_t>(i) * kGranule + 5;
      *reinterpret_cast<volatile char*>(memory.base + offset) = static_cast<char>(10 * times + i + 1);
      CHECK(reinterpret_cast<volatile char*>(opened.base)[5] == 10 * times + i + 1);
      SUCCEEDS(closeOpened(other, &opened, &why));
    }
    closeAll(&bundle);
  }
  close(fd);
}

int nextDescriptor() {
  const int next = dup(STDERR_FILENO);
  close(next);
  return next;
}

// The second allocation would have whatever size the struct held before. Neither descriptor stays open.
void fewerSizesThanDescriptors(int descriptor) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  const uint64_t size = kGranule;
  const int fds[] = {descriptor, descriptor};
  sendDescriptors(ends[0], &size, sizeof size, fds, 2);
  const int next = nextDescriptor();
  Bundle bundle;
  FAILS(unpack(ends[1], &bundle, &why), RH_ERR_PROTOCOL, "2 descriptors with 8 bytes");
  CHECK(bundle.count == 0);
  CHECK(nextDescriptor() == next);
  close(ends[0]);
  close(ends[1]);
}

// What another process may have sent in place of a bundle.
void badBundles() {
  Bundle bundle;
  const int zero = open("/dev/zero", O_RDONLY);
  FAILS(unpack(zero, &bundle, &why), RH_ERR_PROTOCOL, "Socket operation on non-socket");
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  FAILS(unpack(ends[1], &bundle, &why), RH_ERR_PROTOCOL, "Resource temporarily unavailable");  // it does not wait
  CHECK(send(ends[0], "12345678", 8, 0) == 8);
  FAILS(unpack(ends[1], &bundle, &why), RH_ERR_PROTOCOL, "0 descriptors with 8 bytes");
  close(ends[0]);
  close(ends[1]);
  fewerSizesThanDescriptors(zero);
  bundle.count = 2;
  bundle.fds[0] = bundle.fds[1] = zero;
  int fd;
  SUCCEEDS(pack(bundle, &fd, &why));
  rlimit limit, few;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  few = limit;
  few.rlim_cur = static_cast<rlim_t>(nextDescriptor()) + 1;  // room for one of two
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  FAILS(unpack(fd, &bundle, &why), RH_ERR_PROTOCOL, "ulimit -n");
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  bundle.count = 1;
  bundle.fds[0] = 1000000;
  int none;
  FAILS(pack(bundle, &none, &why), RH_ERR_SYSTEM, "the descriptors of 1 allocations: Bad file descriptor");
  CHECK(none == -1);
  close(fd);
  close(zero);
}

void mapped() {
  Mapped memory(3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  Shareable s;
  SUCCEEDS(findShareable(context, memory.base + 100, 3 * kGranule - 100, &s, &why));
  CHECK(s.by == ShareBy::kDescriptor && s.offset == 100 && s.allocationBytes == 3 * kGranule);
  packed(s, memory);
  closeAll(&s.allocations);
  FAILS(findShareable(context, memory.base + kGranule, 2 * kGranule + 1, &s, &why), RH_ERR_INVALID_ARGUMENT, "only the first 4194304 are mapped");
  CHECK(s.allocations.count == 0);
  const CUdeviceptr tensor = memory.base + kGranule + 512;
  SUCCEEDS(findShareable(context, tensor, kGranule - 512, &s, &why));
  CHECK(s.by == ShareBy::kDescriptor && s.offset == 512 && s.allocationBytes == kGranule && s.allocations.count == 1);
  const int fd = s.allocations.fds[0];
  Opened opened, again;
  SUCCEEDS(openDescriptor(other, fd, s.allocationBytes, &opened, &why));
  SUCCEEDS(openDescriptor(other, fd, s.allocationBytes, &again, &why));
  CHECK(opened.base != again.base);
  reinterpret_cast<volatile char*>(opened.base)[s.offset] = 7;
  CHECK(*reinterpret_cast<volatile char*>(tensor) == 7 && reinterpret_cast<volatile char*>(again.base)[s.offset] == 7);
  SUCCEEDS(closeOpened(other, &opened, &why));
  SUCCEEDS(closeOpened(other, &again, &why));
  FAILS(openDescriptor(other, fd, s.allocationBytes + 1, &opened, &why), RH_ERR_PROTOCOL, "no multiple of 2097152");
  FAILS(openDescriptor(other, fd, 0, &opened, &why), RH_ERR_PROTOCOL, "0 bytes");
  FAILS(openDescriptor(other, fd, 2 * kGranule, &opened, &why), RH_ERR_SYSTEM, "cuMemMap");
  FAILS(openDescriptor(other, STDIN_FILENO, kGranule, &opened, &why), RH_ERR_SYSTEM, "cuMemImportFromShareableHandle");
  CHECK(opened.base == 0);
  // Of memory that was opened here no descriptor can be made.
  SUCCEEDS(openDescriptor(context, fd, s.allocationBytes, &opened, &why));
  closeAll(&s.allocations);
  CANNOT(opened.base, 100, "memory of another process");
  SUCCEEDS(closeOpened(context, &opened, &why));

  Mapped many(Bundle::kMost + 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CANNOT(many.base, (Bundle::kMost + 1) * kGranule, "250 allocations, the most that can be shared together");
  SUCCEEDS(findShareable(context, many.base, Bundle::kMost * kGranule, &s, &why));
  int all;
  SUCCEEDS(pack(s.allocations, &all, &why));
  Bundle bundle;
  SUCCEEDS(unpack(all, &bundle, &why));
  CHECK(bundle.count == Bundle::kMost);
  closeAll(&bundle);
  closeAll(&s.allocations);
  close(all);
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
  CHECK(s.by == ShareBy::kIpc && s.offset == 9999 && s.allocationBytes == 10000 && s.allocations.count == 0);
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
  driver = driverForTests();
  SUCCEEDS(openContext(driver, 0, &context, &why));
  SUCCEEDS(openContext(driver, 1, &other, &why));
  const int descriptors = openDescriptors();
  mapped();
  badBundles();
  allocated();
  CHECK(openDescriptors() == descriptors);
  SUCCEEDS(closeContext(&context, &why));
  SUCCEEDS(closeContext(&other, &why));
  const fake_cuda_account none = {};
  CHECK(same(none, fake->account()));
  return 0;
}
