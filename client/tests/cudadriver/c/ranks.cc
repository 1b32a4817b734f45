// Ranks in processes of their own, a device each, that map each other's memory: descriptors go through a socket between every two. Arguments:
// the number of ranks, then what they do.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "comm/comm.h"
#include "descriptors.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/devices.h"
#include "device/cuda/host_memory.h"
#include "device/cuda/memory.h"
#include "device/cuda/opened.h"
#include "device/cuda/peers.h"
#include "device/cuda/probe.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

namespace {

constexpr int kMostRanks = 16;
constexpr uint64_t kStride = 8 * kGranule;

int ranks, rank;
int to[kMostRanks];  // this rank's socket with each other one

// Memory that all ranks share: a barrier, and words that a test needs.
struct SharedMemory {
  int arrived;  // counts up by one a rank and meeting
  int word[4];
} *shared;

void nap() {
  const timespec t = {0, 100000};
  nanosleep(&t, nullptr);
}

template <class F>
void await(F ready) {
  const int64_t deadline = soon();
  while (!ready()) {
    CHECK(railhead::host::nowNs() < deadline);
    nap();
  }
}

int meetings = 0;
void meet() {
  const int all = ++meetings * ranks;
  __atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL);
  await([all] { return __atomic_load_n(&shared->arrived, __ATOMIC_ACQUIRE) >= all; });
}

// Sends bytes, and a descriptor if fd is not -1. The descriptor is closed, as it has gone.
void send(int peer, const void* bytes, size_t count, int fd) {
  sendDescriptors(to[peer], bytes, count, &fd, fd >= 0 ? 1 : 0);
  if (fd >= 0) close(fd);
}

int receive(int peer, void* bytes, size_t count) {
  iovec data = {bytes, count};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr m = {};
  m.msg_iov = &data;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  CHECK(recvmsg(to[peer], &m, MSG_CMSG_CLOEXEC) == static_cast<ssize_t>(count));
  int fd = -1;
  if (const cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr) memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

// Makes a part on every rank and maps all others'.
void share(DeviceHeaps* heaps, uint64_t offset, uint64_t bytes) {
  const HeapPart own = {rank, offset, bytes};
  SUCCEEDS(heaps->create(own, soon(), &why));
  for (int peer = 0; peer < ranks; peer++) {
    if (peer == rank) continue;
    int fd;
    SUCCEEDS(heaps->exportDescriptor(own, &fd, &why));
    send(peer, "f", 1, fd);
  }
  for (int peer = 0; peer < ranks; peer++) {
    char byte;
    if (peer == rank) continue;
    const int fd = receive(peer, &byte, 1);
    CHECK(fd >= 0);
    SUCCEEDS(heaps->import({peer, offset, bytes}, fd, &why));
    close(fd);
  }
}

void unmapAll(DeviceHeaps* heaps, uint64_t offset, uint64_t bytes) {
  for (int r = 0; r < ranks; r++) SUCCEEDS(heaps->unmap({r, offset, bytes}, &why));
}

// The three steps, with a meeting between each.
void probe(const Probe& p) {
  SUCCEEDS(probeStoreOwn(p, &why));
  meet();
  SUCCEEDS(probeVisitPeers(p, &why));
  meet();
  SUCCEEDS(probeReadOwn(p, &why));
  meet();
}

void checkReach(const Context& context) {
  for (int peer = 0; peer < ranks; peer++) {
    char uuid[40];
    DeviceFacts facts;
    SUCCEEDS(describeDevice(*context.driver, context.device, &facts, &why));
    memcpy(uuid, facts.uuid, sizeof uuid);
    if (peer != rank) {
      send(peer, uuid, sizeof uuid, -1);
      receive(peer, uuid, sizeof uuid);
    }
    const PeerReach r = reachOf(context, uuid);
    printf("rank %d to %d: %d %s\n", rank, peer, static_cast<int>(r.reach), r.reason);
  }
}

// Windows come and go on all ranks; the bases stay.
void windows(const Context& context) {
  DeviceHeaps heaps;
  SUCCEEDS(heaps.reserve(context, ranks, kStride, &why));
  const CUdeviceptr base = heaps.base();
  for (int round = 0; round < 3; round++) {
    const uint64_t offset = static_cast<uint64_t>(round) * kGranule;
    share(&heaps, offset, 2 * kGranule);
    meet();
    probe({&context, heaps.address(0, offset), kStride, rank, ranks, soon()});
    auto* own = reinterpret_cast<volatile uint64_t*>(heaps.address(rank, offset + kGranule));
    for (int r = 0; r < ranks; r++) CHECK(own[r] == 0);
    meet();
    for (int r = 0; r < ranks; r++) reinterpret_cast<volatile uint64_t*>(heaps.address(r, offset + kGranule))[rank] = static_cast<uint64_t>(100 * round + rank + 1);
    meet();
    for (int r = 0; r < ranks; r++) CHECK(own[r] == static_cast<uint64_t>(100 * round + r + 1));
    meet();
    unmapAll(&heaps, offset, 2 * kGranule);
    CHECK(heaps.base() == base);
    meet();
  }
  SUCCEEDS(heaps.release(&why));
}

// Rank 1 is killed while it stores into the memory of all others. They replace their memory at the same address: what the dead one wrote is gone.
void killed(const Context& context) {
  DeviceHeaps heaps;
  SUCCEEDS(heaps.reserve(context, ranks, kStride, &why));
  share(&heaps, 0, kGranule);
  meet();
  if (rank == 1) {
    __atomic_store_n(&shared->word[0], getpid(), __ATOMIC_RELEASE);
    for (uint64_t i = 1;; i++) {
      for (int r = 0; r < ranks; r++) *reinterpret_cast<volatile uint64_t*>(heaps.address(r, 0)) = i;
    }
  }
  auto* own = reinterpret_cast<volatile uint64_t*>(heaps.address(rank, 0));
  await([own] { return *own != 0; });
  __atomic_fetch_add(&shared->word[2], 1, __ATOMIC_ACQ_REL);
  if (rank == 0) {
    await([] { return __atomic_load_n(&shared->word[2], __ATOMIC_ACQUIRE) == ranks - 1; });  // it has stored into all others
    CHECK(kill(__atomic_load_n(&shared->word[0], __ATOMIC_ACQUIRE), SIGKILL) == 0);
    __atomic_store_n(&shared->word[1], 1, __ATOMIC_RELEASE);
  }
  await([] { return __atomic_load_n(&shared->word[1], __ATOMIC_ACQUIRE) != 0; });
  SUCCEEDS(heaps.unmap({rank, 0, kGranule}, &why));
  SUCCEEDS(heaps.create({rank, 0, kGranule}, soon(), &why));
  CHECK(*own == 0);
  SUCCEEDS(heaps.release(&why));
}

// Memory of cudaMalloc of this rank, and the handle of the next rank's.
struct Allocated {
  static constexpr uint64_t kBytes = 3 << 20, kOffset = 4096;
  const Context& context;
  CUdeviceptr tensor = 0;
  cuda::Shareable mine;
  CUipcMemHandle nexts;

  explicit Allocated(const Context& of) : context(of) {
    {
      Failure why;
      const Current current(context, &why);
      CHECK(current && context.driver->cuMemAlloc(&why, &tensor, kBytes) && context.driver->cuMemsetD8(&why, tensor, static_cast<unsigned char>(rank + 1), kBytes));
    }
    SUCCEEDS(findShareable(context, tensor + kOffset, 100, &mine, &why));
    CHECK(mine.by == ShareBy::kIpc && mine.allocationBytes == kBytes && mine.offset == kOffset && mine.allocations.count == 0);
    send((rank + ranks - 1) % ranks, &mine.handle, sizeof mine.handle, -1);
    receive((rank + 1) % ranks, &nexts, sizeof nexts);
  }
  ~Allocated() {
    meet();
    Failure why;
    const Current current(context, &why);
    CHECK(current && context.driver->cuMemFree(&why, tensor));
  }
};

// The handle is opened twice and closed twice.
void ipc(const Context& context) {
  constexpr uint64_t kBytes = Allocated::kBytes, kOffset = Allocated::kOffset;
  const Allocated memory(context);
  Opened opened[2];
  FAILS(openIpc(context, memory.nexts, kBytes + 1, &opened[0], &why), RH_ERR_PROTOCOL, "has 3145728 bytes from where the handle points, not 3145729");
  FAILS(openIpc(context, memory.mine.handle, kBytes, &opened[0], &why), RH_ERR_SYSTEM, "a process cannot open its own");
  for (Opened& o : opened) SUCCEEDS(openIpc(context, memory.nexts, kBytes, &o, &why));
  CHECK(opened[0].base == opened[1].base);
  const auto* theirs = reinterpret_cast<volatile unsigned char*>(opened[0].base);
  const int next = (rank + 1) % ranks;
  CHECK(theirs[kOffset] == next + 1 && theirs[kBytes - 1] == next + 1);
  SUCCEEDS(closeOpened(context, &opened[0], &why));
  CHECK(theirs[0] == next + 1);
  SUCCEEDS(closeOpened(context, &opened[1], &why));
  SUCCEEDS(closeOpened(context, &opened[1], &why));  // nothing
}

// Windows in the next rank's allocation. One that the allocation does not contain is refused, and nothing stays open.
void contained(const Context& context) {
  constexpr uint64_t kBytes = Allocated::kBytes, kOffset = Allocated::kOffset;
  const Allocated memory(context);
  static Comm comm;
  static CudaComm of;
  of.context = context;
  comm.onDevice = &of;
  comm.worldSize = 2;
  comm.localRank = LocalRank{0};
  Offered offers[2];
  static_assert(sizeof offers[1].handle == sizeof memory.nexts, "a handle");
  memcpy(offers[1].handle, &memory.nexts, sizeof memory.nexts);
  offers[1].allocationBytes = kBytes;
  const struct {
    uint64_t offset, bytes;
    bool inside;
  } windows[] = {{kOffset, kBytes - kOffset, true}, {kOffset, kBytes - kOffset + 1, false}, {kBytes + 16, 1, false}, {kOffset, UINT64_MAX, false}};
  for (const auto& w : windows) {
    char* parts[2] = {};
    Placed placed;
    offers[1].offset = w.offset;
    const int error = placeApart(&comm, reinterpret_cast<void*>(memory.tensor), w.bytes, offers, &placed, parts);
    CHECK((error == 0) == w.inside && (of.opened != nullptr) == w.inside);
    CHECK(of.failed.result == (w.inside ? RH_OK : RH_ERR_PROTOCOL));
    if (w.inside) closeApart(&of, placed.apart);
  }
}

// Where peer access is refused, the driver says so, and memory of the host serves: the same layout, another base and stride.
void staged(const Context& context) {
  DeviceHeaps heaps;
  SUCCEEDS(heaps.reserve(context, ranks, kStride, &why));
  const HeapPart own = {rank, 0, kGranule};
  SUCCEEDS(heaps.create(own, soon(), &why));
  for (int peer = 0; peer < ranks; peer++) {
    int fd;
    if (peer == rank) continue;
    SUCCEEDS(heaps.exportDescriptor(own, &fd, &why));
    send(peer, "f", 1, fd);
  }
  for (int peer = 0; peer < ranks; peer++) {
    char byte;
    if (peer == rank) continue;
    const int fd = receive(peer, &byte, 1);
    FAILS(heaps.import({peer, 0, kGranule}, fd, &why), RH_ERR_UNSUPPORTED, "cuMemSetAccess: CUDA_ERROR_NOT_SUPPORTED (801)");
    close(fd);
  }
  SUCCEEDS(heaps.release(&why));
  const uint64_t bytes = 65536;
  char* host = reinterpret_cast<char*>(shared) + 4096;
  SUCCEEDS(pinHost(context, host, static_cast<uint64_t>(ranks) * bytes, &why));
  FAILS(pinHost(context, host + 4096, bytes, &why), RH_ERR_BUSY, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712)");
  meet();
  probe({&context, reinterpret_cast<CUdeviceptr>(host), bytes, rank, ranks, soon()});
  SUCCEEDS(unpinHost(context, host, &why));
  FAILS(unpinHost(context, host, &why), RH_ERR_SYSTEM, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED (713)");
}

// A rank that maps the wrong memory is found out: the descriptors of ranks 0 and 1 are swapped.
void wrong(const Context& context) {
  DeviceHeaps heaps;
  SUCCEEDS(heaps.reserve(context, ranks, kStride, &why));
  CHECK(ranks == 3);
  share(&heaps, 0, kGranule);
  if (rank == 2) {
    int fd[2];
    for (int r = 0; r < 2; r++) {
      char byte;
      SUCCEEDS(heaps.unmap({r, 0, kGranule}, &why));
      fd[r] = receive(r, &byte, 1);
    }
    for (int r = 0; r < 2; r++) {
      SUCCEEDS(heaps.import({r, 0, kGranule}, fd[1 - r], &why));
      close(fd[1 - r]);
    }
  } else {
    int fd;
    SUCCEEDS(heaps.exportDescriptor({rank, 0, kGranule}, &fd, &why));
    send(2, "f", 1, fd);
  }
  const Probe p = {&context, heaps.base(), kStride, rank, ranks, soon()};
  SUCCEEDS(probeStoreOwn(p, &why));
  meet();
  if (rank == 2) {
    FAILS(probeVisitPeers(p, &why), RH_ERR_SYSTEM, "reading the device memory of local rank 0 from device 2: the probe stored 0x");
  } else {
    SUCCEEDS(probeVisitPeers(p, &why));
  }
  meet();
  if (rank < 2) FAILS(probeReadOwn(p, &why), RH_ERR_SYSTEM, "stores of local rank 2 into the memory of device");
  meet();
  SUCCEEDS(heaps.release(&why));
}

int runRank(const char* what) {
  const Driver* driver = driverForTests();
  Fake fake;
  char device[16];
  snprintf(device, sizeof device, "%d", getenv("RANKS_SEE_ONE_DEVICE") != nullptr ? 0 : rank);
  CUdevice ordinal;
  SUCCEEDS(findDevice(*driver, device, &ordinal, &why));
  Context context;
  SUCCEEDS(openContext(driver, ordinal, &context, &why));
  const int descriptors = openDescriptors();
  const auto before = fake.account();
  const struct {
    const char* name;
    void (*run)(const Context&);
  } all[] = {{"reach", checkReach}, {"windows", windows}, {"killed", killed}, {"ipc", ipc}, {"contained", contained}, {"staged", staged}, {"wrong", wrong}};
  bool found = false;
  for (const auto& test : all) {
    if (strcmp(test.name, what) != 0) continue;
    found = true;
    test.run(context);
  }
  CHECK(found && same(before, fake.account()) && openDescriptors() == descriptors);
  SUCCEEDS(closeContext(&context, &why));
  const fake_cuda_account none = {};
  CHECK(same(none, fake.account()));
  return 0;
}

// In new pid and IPC namespaces, as containers have them. The process that enters is not in the pid namespace itself; its child is.
int inNamespaces(const char* what) {
  if (unshare(CLONE_NEWPID | CLONE_NEWIPC | (geteuid() != 0 ? CLONE_NEWUSER : 0)) != 0) {
    perror("unshare");
    return 77;
  }
  const pid_t child = fork();
  if (child == 0) _exit(runRank(what));
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int, char** arguments) {
  ranks = atoi(arguments[1]);
  const char* what = arguments[2];
  const bool apart = arguments[3] != nullptr && strcmp(arguments[3], "apart") == 0;
  CHECK(ranks > 0 && ranks <= kMostRanks);
  // Bytes behind the first page are the ranks' host heaps.
  void* memory = mmap(nullptr, 4096 + kMostRanks * 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  shared = static_cast<SharedMemory*>(memory);
  int pairs[kMostRanks][kMostRanks];
  for (int a = 0; a < ranks; a++) {
    for (int b = a + 1; b < ranks; b++) {
      int pair[2];
      CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
      pairs[a][b] = pair[0];
      pairs[b][a] = pair[1];
    }
  }
  pid_t children[kMostRanks];
  for (rank = 0; rank < ranks; rank++) {
    children[rank] = fork();
    CHECK(children[rank] >= 0);
    if (children[rank] > 0) continue;
    for (int peer = 0; peer < ranks; peer++) to[peer] = peer != rank ? pairs[rank][peer] : -1;
    if (getenv("RANKS_SEE_ONE_DEVICE") != nullptr) {
      char device[16];
      snprintf(device, sizeof device, "%d", rank);
      setenv("CUDA_VISIBLE_DEVICES", device, 1);
    }
    exit(apart ? inNamespaces(what) : runRank(what));
  }
  int result = 0;
  for (int r = 0; r < ranks; r++) {
    int status;
    CHECK(waitpid(children[r], &status, 0) == children[r]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    if (strcmp(what, "killed") == 0 && r == 1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) continue;
    fprintf(stderr, "rank %d ended with status %d\n", r, status);
    result = WIFEXITED(status) && WEXITSTATUS(status) == 77 ? 77 : 1;
  }
  return result;
}
