// Device heaps of two ranks in one process: what is refused, replacing memory at the same address, and each call of the driver failing in
// turn, after which nothing is left. Argument: how many calls of each function fail.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "device/cuda/host_memory.h"
#include "device/cuda/memory.h"
#include "device/cuda/opened.h"
#include "device/cuda/probe.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

namespace {

Fake* fake;
const Driver* driver;

constexpr uint64_t kStride = 4 * kGranule;

// What one rank does in its life, with the other one in the same process. Descriptors are closed on every path.
bool live(Failure* why) {
  const HeapPart part[] = {{0, kGranule, kGranule}, {1, kGranule, kGranule}};
  Context context[2];
  DeviceHeaps heaps[2];
  bool ok = true;
  for (int r = 0; r < 2 && ok; r++) ok = openContext(driver, r, &context[r], why) && heaps[r].reserve(context[r], 2, kStride, why);
  for (int r = 0; r < 2 && ok; r++) ok = heaps[r].create(part[r], soon(), why) && heaps[r].fill(r, kGranule + 4096, 64, 0xff, soon(), why);
  for (int r = 0; r < 2 && ok; r++) {
    int fd = -1;
    ok = heaps[r].exportDescriptor(part[r], &fd, why) && heaps[1 - r].import(part[r], fd, why);
    if (fd >= 0) {
      CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
      close(fd);
    }
  }
  void* status = ok ? allocateHost(context[0], 4096, why) : nullptr;
  ok = ok && status != nullptr;
  constexpr size_t kShared = 8192;
  void* shared = mmap(nullptr, kShared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  bool isPinned = ok && pinHost(context[0], shared, kShared, why);
  ok = ok && isPinned;
  Shareable shareable;
  ok = ok && findShareable(context[0], heaps[0].address(0, kGranule), 4096, &shareable, why);
  if (ok) {
    CHECK(shareable.by == ShareBy::kDescriptor || shareable.reason[0] != '\0');  // the export may be the call that fails
    Opened opened;
    ok = shareable.by != ShareBy::kDescriptor || openDescriptor(context[1], shareable.allocations.fds[0], shareable.allocationBytes, &opened, why);
    Failure closing;
    if (!closeOpened(context[1], &opened, &closing)) ok = because(why, closing.result, "%s", closing.text);
    closeAll(&shareable.allocations);
  }
  const HeapPart second = {0, 2 * kGranule, kGranule};
  if (ok && heaps[0].alias(second, heaps[0].address(0, kGranule), why)) {
    *reinterpret_cast<volatile char*>(heaps[0].address(0, kGranule) + 9) = 3;
    CHECK(*reinterpret_cast<volatile char*>(heaps[0].address(0, 2 * kGranule) + 9) == 3);
    uint64_t room = 0;
    CHECK(heaps[0].findRoom(kGranule, kGranule, &room) && room == 3 * kGranule && !heaps[0].findRoom(kGranule, 2 * kGranule, &room));
    ok = heaps[0].unmapAll(2 * kGranule, kGranule, why);
  } else {
    ok = false;
  }
  if (ok && !probeFabric(context[0], why)) {
    ok = why->code == CUDA_ERROR_NOT_PERMITTED && strstr(why->text, "cuMemCreate") != nullptr;
    if (ok) *why = Failure();
  }
  ok = (status == nullptr || freeHost(context[0], status, why)) && ok;
  if (isPinned && unpinHost(context[0], shared, why)) isPinned = false;
  ok = !isPinned && ok;
  if (!isPinned) munmap(shared, kShared);  // else it stays pinned
  for (int r = 0; r < 2; r++) ok = heaps[r].release(why) && ok;
  for (int r = 0; r < 2; r++) ok = closeContext(&context[r], why) && ok;
  return ok;
}

// Functions that undo something. If one fails, what it should undo stays, once, and nothing else.
struct Undo {
  const char* name;
  fake_cuda_account leaves;
  int descriptors;  // of the fake driver's memory
};

const Undo* undoOf(const char* text) {
  static Undo undos[] = {{"cuMemUnmap", {}, 1},          {"cuMemRelease", {}, 1},  {"cuMemAddressFree", {}, 0},   {"cuStreamDestroy", {}, 0},
                         {"cuDevicePrimaryCtxRelease", {}, 0}, {"cuMemFreeHost", {}, 0}, {"cuMemHostUnregister", {}, 0}};
  undos[0].leaves.mappings = undos[0].leaves.reservations = 1;  // addresses cannot be freed while memory is mapped there
  undos[1].leaves.handles = 1;
  undos[2].leaves.reservations = 1;
  undos[3].leaves.streams = 1;
  undos[4].leaves.contexts = 1;
  undos[5].leaves.pinned = undos[6].leaves.pinned = 1;
  for (const Undo& u : undos) {
    if (strstr(text, u.name) != nullptr) return &u;
  }
  return nullptr;
}

// Whether no more is left than a failed undo leaves.
bool noMoreThan(const fake_cuda_account& leaves, const fake_cuda_account& before, const fake_cuda_account& now) {
  const auto left = [&](long fake_cuda_account::*of) { return now.*of - before.*of >= 0 && now.*of - before.*of <= leaves.*of; };
  using A = fake_cuda_account;
  return left(&A::contexts) && left(&A::streams) && left(&A::events) && left(&A::graphs) && left(&A::execs) && left(&A::user_objects) && left(&A::modules) &&
         left(&A::reservations) && left(&A::handles) && left(&A::mappings) && left(&A::allocations) && left(&A::opened) && left(&A::pinned);
}

// Each call by the name of its function: how often streams are polled varies, and with it the place of a call among all.
#define NAME(name, release, parameters) #name,
const char* const kFunctions[] = {RAILHEAD_CUDA_FUNCTIONS(NAME)};
#undef NAME

struct Outcomes {
  long failed = 0, undone = 0, tolerated = 0;
};

void failNth(const char* function, long nth, Outcomes* out) {
  const fake_cuda_account before = fake->account();
  const int descriptors = openDescriptors();
  fake->fail(function, nth, CUDA_ERROR_UNKNOWN);
  Failure why;
  const bool ok = live(&why);
  fake->fail("*", 0, 0);
  const bool nothingLeft = same(before, fake->account()) && openDescriptors() == descriptors;
  if (ok) {
    CHECK(nothingLeft);  // a call that may fail: it only asks
    out->tolerated++;
    return;
  }
  // What undoes something is called also where its context cannot be made current.
  const bool withoutContext = strcmp(function, "cuCtxPushCurrent") == 0 && strstr(why.text, "CUDA_ERROR_INVALID_CONTEXT") != nullptr;
  if (!withoutContext && strstr(why.text, "CUDA_ERROR_UNKNOWN (999): unknown error") == nullptr) {
    fprintf(stderr, "%s failed, call %ld, and the reason is %d, \"%s\"\n", function, nth, why.result, why.text);
    abort();
  }
  if (nothingLeft) {
    out->failed++;
    return;
  }
  const Undo* undo = undoOf(why.text);
  if (undo == nullptr || !noMoreThan(undo->leaves, before, fake->account()) || openDescriptors() > descriptors + undo->descriptors) {
    fprintf(stderr, "%s failed, call %ld (%s), and something else is left\n", function, nth, why.text);
    abort();
  }
  out->undone++;
}

void eachCallFailsInTurn(long most) {
  constexpr int n = sizeof kFunctions / sizeof kFunctions[0];
  long calls[n];
  for (int f = 0; f < n; f++) calls[f] = -fake->calls(kFunctions[f]);
  const fake_cuda_account before = fake->account();
  const int descriptors = openDescriptors();
  SUCCEEDS(live(&why));
  CHECK(same(before, fake->account()) && openDescriptors() == descriptors);
  for (int f = 0; f < n; f++) calls[f] += fake->calls(kFunctions[f]);
  Outcomes out;
  for (int f = 0; f < n; f++) {
    for (long nth = 1; nth <= calls[f] && nth <= most; nth++) failNth(kFunctions[f], nth, &out);
  }
  printf("%ld failures left nothing, %ld of what undoes something, %ld tolerated\n", out.failed, out.undone, out.tolerated);
  CHECK(out.failed > 15);
}

CUcontext currentContext() {
  CUcontext current = nullptr;
  CHECK(driver->cuCtxGetCurrent.call(&current) == CUDA_SUCCESS);
  return current;
}

// The first reason stays, and long texts are cut.
void failures() {
  Failure why;
  CHECK(!because(&why, RH_ERR_BUSY, "first %d", 1) && !because(&why, RH_ERR_SYSTEM, "second"));
  CHECK(!driverFailed(driver, "cuInit", CUDA_ERROR_OUT_OF_MEMORY, &why));
  CHECK(why.result == RH_ERR_BUSY && why.code == CUDA_SUCCESS && strcmp(why.text, "first 1") == 0);
  CHECK(!prefix(&why, "rank %d: ", 7) && strcmp(why.text, "rank 7: first 1") == 0);
  char longText[2000];
  memset(longText, 'x', sizeof longText);
  longText[sizeof longText - 1] = '\0';
  CHECK(!prefix(&why, "%s", longText) && strlen(why.text) == sizeof why.text - 1);
  Failure other;
  CHECK(!because(&other, RH_ERR_BUSY, "%s", longText) && strlen(other.text) == sizeof other.text - 1);
}

// A context that could not be opened is not held, and none stays current.
void unopened() {
  const char* const functions[] = {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode", "cuStreamCreate"};
  const fake_cuda_account none = {};
  Context context;
  for (const char* name : functions) {
    fake->fail(name, 1, CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(openContext(driver, 1, &context, &why), RH_ERR_OUT_OF_MEMORY, name);
    CHECK(context.handle == nullptr && same(none, fake->account()) && currentContext() == nullptr);
  }
  SUCCEEDS(openContext(driver, 1, &context, &why));
  CHECK(currentContext() == nullptr);
  SUCCEEDS(closeContext(&context, &why));
  CHECK(currentContext() == nullptr);
  SUCCEEDS(closeContext(&context, &why));  // nothing
}

void badArguments() {
  Context context;
  SUCCEEDS(openContext(driver, 0, &context, &why));
  {
    DeviceHeaps heaps;
    FAILS(heaps.create({0, 0, kGranule}, soon(), &why), RH_ERR_INVALID_ARGUMENT, "0 heaps");
    FAILS(heaps.reserve(context, 2, kGranule + 1, &why), RH_ERR_INVALID_ARGUMENT, "multiple of 2097152");
    FAILS(heaps.reserve(context, 2, 0, &why), RH_ERR_INVALID_ARGUMENT, "multiple");
    FAILS(heaps.reserve(context, 0, kGranule, &why), RH_ERR_INVALID_ARGUMENT, "0 ranks");
    FAILS(heaps.reserve(context, 64, ~uint64_t{0} / 2 / kGranule * kGranule, &why), RH_ERR_INVALID_ARGUMENT, "64 ranks");
    SUCCEEDS(heaps.reserve(context, 2, kStride, &why));
    FAILS(heaps.reserve(context, 2, kStride, &why), RH_ERR_INVALID_ARGUMENT, "already");
    const HeapPart bad[] = {{-1, 0, kGranule},        {2, 0, kGranule}, {0, 4096, kGranule}, {0, 0, 4096}, {0, 0, 0}, {0, kStride, kGranule}, {0, kGranule, kStride},
                            {0, ~uint64_t{0} / kGranule * kGranule, kGranule}};
    for (const HeapPart& part : bad) {
      FAILS(heaps.create(part, soon(), &why), RH_ERR_INVALID_ARGUMENT, "2 heaps of 8388608 bytes");
      FAILS(heaps.import(part, 0, &why), RH_ERR_INVALID_ARGUMENT, "import");
    }
    SUCCEEDS(heaps.create({0, 0, kGranule}, soon(), &why));
    FAILS(heaps.create({0, 0, kGranule}, soon(), &why), RH_ERR_SYSTEM, "cuMemMap: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    FAILS(heaps.unmap({0, 0, 2 * kGranule}, &why), RH_ERR_INVALID_ARGUMENT, "not mapped as one part");
    int fd = 7;
    FAILS(heaps.exportDescriptor({1, 0, kGranule}, &fd, &why), RH_ERR_INVALID_ARGUMENT, "not mapped");
    CHECK(fd == -1);
    const int other = memfd_create("other", MFD_CLOEXEC);
    FAILS(heaps.import({1, 0, kGranule}, other, &why), RH_ERR_SYSTEM, "cuMemImportFromShareableHandle");
    FAILS(heaps.import({1, 0, kGranule}, -1, &why), RH_ERR_SYSTEM, "mapping 2097152 bytes of local rank 1");
    close(other);
    SUCCEEDS(heaps.exportDescriptor({0, 0, kGranule}, &fd, &why));
    FAILS(heaps.import({1, 0, 2 * kGranule}, fd, &why), RH_ERR_SYSTEM, "cuMemMap");  // more than there is
    SUCCEEDS(heaps.import({1, 0, kGranule}, fd, &why));
    close(fd);
    FAILS(heaps.exportDescriptor({1, 0, kGranule}, &fd, &why), RH_ERR_INVALID_ARGUMENT, "only the process that created");
  }
  SUCCEEDS(closeContext(&context, &why));
}

// Memory that replaces other memory at the same address is other memory: what a dead rank still stores does not reach it.
void replacing() {
  Context context;
  SUCCEEDS(openContext(driver, 0, &context, &why));
  {
    DeviceHeaps own, peer;
    const HeapPart part = {0, 0, kGranule};
    SUCCEEDS(own.reserve(context, 1, kStride, &why));
    SUCCEEDS(peer.reserve(context, 1, kStride, &why));
    SUCCEEDS(own.create(part, soon(), &why));
    int fd;
    SUCCEEDS(own.exportDescriptor(part, &fd, &why));
    SUCCEEDS(peer.import(part, fd, &why));
    close(fd);
    auto* mine = reinterpret_cast<volatile uint64_t*>(own.address(0, 0));
    auto* theirs = reinterpret_cast<volatile uint64_t*>(peer.address(0, 0));
    for (uint64_t i = 0; i < kGranule / 8; i++) CHECK(mine[i] == 0);
    *theirs = 42;
    CHECK(*mine == 42);
    SUCCEEDS(own.unmap(part, &why));
    SUCCEEDS(own.create(part, soon(), &why));
    CHECK(reinterpret_cast<volatile uint64_t*>(own.address(0, 0)) == mine && *mine == 0);
    *theirs = 43;
    CHECK(*mine == 0 && *theirs == 43);
    CHECK(fake->account().mappings == 2);
  }
  SUCCEEDS(closeContext(&context, &why));
}

// While another stream of the process is captured, set-up calls go on and do not end the capture.
void whileCapturing() {
  Context context;
  SUCCEEDS(openContext(driver, 0, &context, &why));
  CUstream stream;
  {
    Failure why;
    const Current current(context, &why);
    CHECK(driver->cuStreamCreate.call(&stream, 0) == CUDA_SUCCESS);
    CHECK(fake->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  }
  CUdeviceptr pointer;
  {
    Failure why;
    DeviceHeaps heaps;
    SUCCEEDS(heaps.reserve(context, 1, kStride, &why));
    SUCCEEDS(heaps.create({0, 0, kGranule}, soon(), &why));
    SUCCEEDS(heaps.release(&why));
    void* words = allocateHost(context, 4096, &why);
    CHECK(words != nullptr);
    SUCCEEDS(freeHost(context, words, &why));
    CUstreamCaptureStatus status;
    const Current current(context, &why);
    CHECK(driver->cuStreamIsCapturing.call(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  }
  driver->cuCtxPushCurrent.call(context.handle);
  CHECK(driver->cuMemAlloc.call(&pointer, 4096) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);  // the thread's own mode is back
  CUgraph graph;
  CHECK(fake->cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && graph == nullptr);
  CHECK(driver->cuStreamDestroy.call(stream) == CUDA_SUCCESS);
  CUcontext popped;
  driver->cuCtxPopCurrent.call(&popped);
  SUCCEEDS(closeContext(&context, &why));
}

}  // namespace

int main(int, char** arguments) {
  static Fake hooks;
  fake = &hooks;
  driver = driverForTests();
  failures();
  unopened();
  badArguments();
  replacing();
  whileCapturing();
  const fake_cuda_account none = {};
  CHECK(same(none, fake->account()));
  eachCallFailsInTurn(strtol(arguments[1], nullptr, 10));
  return 0;
}
