// Drawn sequences of calls on the device heaps of three ranks in one process, with calls of the driver that fail, against a plain model: what
// each rank sees at each place. Arguments: the first seed, and the number of seeds.
#include <unistd.h>

#include "check.h"
#include "device/cuda/memory.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

namespace {

constexpr int kRanks = 3;
constexpr int kPlaces = 4;  // parts of a heap, a granule each
constexpr int kCalls = 120;

Fake* fake;
uint64_t state;
uint64_t seed;
int step;

int draw(int below) {
  state = state * 6364136223846793005 + 1442695040888963407;
  return static_cast<int>((state >> 33) % static_cast<uint64_t>(below));
}

#define MUST(condition)                                                                                                         \
  do {                                                                                                                          \
    if (!(condition)) {                                                                                                         \
      fprintf(stderr, "%s:%d: seed %llu, step %d: %s\n", __FILE__, __LINE__, static_cast<unsigned long long>(seed), step, #condition); \
      abort();                                                                                                                  \
    }                                                                                                                           \
  } while (0)

// Memory that a create made; 0 = none.
struct Model {
  int seen[kRanks][kRanks][kPlaces] = {};  // by viewer, owner, place
  uint64_t value[kCalls + 1] = {};         // by memory: what was stored last
};

HeapPart partOf(int owner, int place) { return {owner, static_cast<uint64_t>(place) * kGranule, kGranule}; }

volatile uint64_t* wordOf(const DeviceHeaps& heaps, int owner, int place) {
  return reinterpret_cast<volatile uint64_t*>(heaps.address(owner, static_cast<uint64_t>(place) * kGranule + kGranule - sizeof(uint64_t)));
}

void check(const DeviceHeaps* heaps, const Model& m) {
  long mapped = 0;
  for (int viewer = 0; viewer < kRanks; viewer++) {
    for (int owner = 0; owner < kRanks; owner++) {
      for (int place = 0; place < kPlaces; place++) {
        const int memory = m.seen[viewer][owner][place];
        if (memory == 0) continue;
        mapped++;
        MUST(*wordOf(heaps[viewer], owner, place) == m.value[memory]);
      }
    }
  }
  MUST(fake->account().mappings == mapped);
}

// May fail a call of the driver; then the call under test must leave everything as it was. Calls that undo something do not fail here: what they
// should undo would stay.
bool mayFail() {
  static const char* const kFunctions[] = {"cuMemCreate",    "cuMemMap",         "cuMemSetAccess", "cuMemImportFromShareableHandle", "cuMemsetD8Async",
                                           "cuStreamQuery", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"};
  const bool fails = draw(3) == 0;
  if (fails) fake->fail(kFunctions[draw(sizeof kFunctions / sizeof kFunctions[0])], 1, CUDA_ERROR_OPERATING_SYSTEM);
  return fails;
}

void create(DeviceHeaps* heaps, Model* m, int owner, int place) {
  int* seen = &m->seen[owner][owner][place];
  Failure why;
  const bool failing = mayFail();
  const bool made = heaps[owner].create(partOf(owner, place), soon(), &why);
  fake->fail("*", 0, 0);
  MUST(made ? *seen == 0 : failing || *seen != 0);
  if (!made) return;
  *seen = step;
  m->value[step] = 0;
}

void import(DeviceHeaps* heaps, Model* m, int viewer, int owner, int place) {
  Failure why;
  int fd = -1;
  const int memory = m->seen[owner][owner][place];
  MUST(heaps[owner].exportDescriptor(partOf(owner, place), &fd, &why) == (memory != 0));
  if (memory == 0) return;
  int* seen = &m->seen[viewer][owner][place];
  const bool failing = mayFail();
  const bool mapped = heaps[viewer].import(partOf(owner, place), fd, &why);
  fake->fail("*", 0, 0);
  close(fd);
  MUST(mapped ? *seen == 0 : failing || *seen != 0);
  if (mapped) *seen = memory;
}

void unmap(DeviceHeaps* heaps, Model* m, int viewer, int owner, int place) {
  int* seen = &m->seen[viewer][owner][place];
  Failure why;
  MUST(heaps[viewer].unmap(partOf(owner, place), &why) == (*seen != 0));
  *seen = 0;
}

void write(DeviceHeaps* heaps, Model* m, int viewer, int owner, int place) {
  const int memory = m->seen[viewer][owner][place];
  if (memory == 0) return;
  m->value[memory] = seed << 32 | static_cast<uint64_t>(step);
  *wordOf(heaps[viewer], owner, place) = m->value[memory];
}

void play(const Context* context) {
  DeviceHeaps heaps[kRanks];
  Model m;
  for (int r = 0; r < kRanks; r++) SUCCEEDS(heaps[r].reserve(context[r], kRanks, kPlaces * kGranule, &why));
  for (step = 1; step <= kCalls; step++) {
    const int viewer = draw(kRanks), owner = draw(kRanks), place = draw(kPlaces);
    switch (draw(5)) {
      case 0: create(heaps, &m, owner, place); break;
      case 1:
      case 2: viewer == owner ? create(heaps, &m, owner, place) : import(heaps, &m, viewer, owner, place); break;
      case 3: unmap(heaps, &m, viewer, owner, place); break;
      default: write(heaps, &m, viewer, owner, place);
    }
    check(heaps, m);
  }
  for (DeviceHeaps& h : heaps) SUCCEEDS(h.release(&why));
}

}  // namespace

int main(int, char** arguments) {
  static Fake hooks;
  fake = &hooks;
  const Driver* driver = driverForTests();
  Context context[kRanks];
  for (int r = 0; r < kRanks; r++) SUCCEEDS(openContext(driver, r, &context[r], &why));
  const int descriptors = openDescriptors();
  const fake_cuda_account before = fake->account();
  const uint64_t first = strtoull(arguments[1], nullptr, 10), end = first + strtoull(arguments[2], nullptr, 10);
  for (seed = first; seed < end; seed++) {
    state = seed * 0x9e3779b97f4a7c15;
    play(context);
    MUST(same(before, fake->account()) && openDescriptors() == descriptors);
  }
  for (Context& c : context) SUCCEEDS(closeContext(&c, &why));
  return 0;
}
