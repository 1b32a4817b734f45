// What rh_all_reduce takes on the host beyond the launch of its kernel, and what functions of the driver add to a launch. Several libraries take
// turns, round by round, in one process, so that the state of the machine is the same for all.
//
//   make lib
//   g++ -std=c++17 -O2 -pthread -Iclient -Iclient/include -Ikernels/include benchmarks/gpu/overhead.cc -o build/overhead -ldl
//   railhead serve & build/overhead kernels/cubin/kernels.sm_90.cubin build/old/librailhead.so build/librailhead.so
//
// Without a GPU, on the driver for tests with RAILHEAD_FAKE_CUDA_HOLLOW=1, it shows what the libraries take themselves.
//
// Two ranks on the first GPU, 16 bytes, f32. The driver is libcuda.so.1, or what RAILHEAD_CUDA_LIBRARY names. A loop calls kCalls times and is
// timed by two looks at the clock; the streams are empty before it. "one thread": a rank after the other. "two threads": both at once, as two ranks of
// one process run; then the driver's locks count too.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/driver_functions.h"
#include "device/cuda/driver_types.h"
#include "railhead.h"
#include "railhead/gpu/launch.h"

namespace {

using namespace railhead::client::cuda;
using railhead::gpu::Call;
using railhead::gpu::GpuState;
using railhead::gpu::Layout;
using railhead::gpu::Status;

constexpr int kRanks = 2, kRounds = 201, kCalls = 100;
constexpr uint64_t kSlotBytes = 16384;
constexpr size_t kCount = 4;

struct Driver {
#define OVERHEAD_MEMBER(name, release, parameters) CUresult(*name) parameters = nullptr;
  RAILHEAD_CUDA_FUNCTIONS(OVERHEAD_MEMBER)
#undef OVERHEAD_MEMBER
} driver;

[[noreturn]] void die(const char* what, const char* why) {
  fprintf(stderr, "overhead: %s: %s\n", what, why);
  exit(1);
}

void need(CUresult code, const char* what) {
  const char* text = nullptr;
  if (code == CUDA_SUCCESS) return;
  if (driver.cuGetErrorName != nullptr) driver.cuGetErrorName(code, &text);
  die(what, text != nullptr ? text : "CUDA error");
}
#define NEED(name, ...) need(driver.name(__VA_ARGS__), #name)

void loadDriver() {
  const char* path = getenv("RAILHEAD_CUDA_LIBRARY");
  void* library = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW);
  if (library == nullptr) die("the driver", dlerror());
  using Get = CUresult (*)(const char*, void**, int, uint64_t, CUdriverProcAddressQueryResult*);
  const auto get = reinterpret_cast<Get>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) die("the driver", "no cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult found;
  void* address = nullptr;
#define OVERHEAD_FIND(name, release, parameters)                                              \
  need(get(#name, &address, release, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found), #name);      \
  driver.name = reinterpret_cast<CUresult(*) parameters>(address);
  RAILHEAD_CUDA_FUNCTIONS(OVERHEAD_FIND)
#undef OVERHEAD_FIND
}

CUcontext context;
CUstream streams[kRanks];

void enter() { NEED(cuCtxPushCurrent, context); }

// Ranks without a library: only their kernels and memory.
struct Bare {
  CUfunction kernel;
  Call calls[kRanks] = {};
  CUlaunchConfig config[kRanks] = {};

  explicit Bare(const char* image) {
    FILE* f = fopen(image, "rb");
    if (f == nullptr) die(image, "cannot be opened");
    std::string bytes(16 << 20, '\0');
    bytes.resize(fread(&bytes[0], 1, bytes.size(), f) + 1);
    fclose(f);
    CUmodule module;
    NEED(cuModuleLoadDataEx, &module, bytes.data(), 0, nullptr, nullptr);
    NEED(cuModuleGetFunction, &kernel, module, "rh_all_reduce_oneshot_f32_2");
    NEED(cuFuncLoad, kernel);
    const Layout layout = railhead::gpu::layoutOf(kRanks, kSlotBytes);
    const uint64_t stride = (layout.bytes + 8191) / 4096 * 4096;
    CUdeviceptr base;
    void* status;
    NEED(cuMemAlloc, &base, stride * kRanks);
    NEED(cuMemHostAlloc, &status, sizeof(Status) * kRanks, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    memset(status, 0, sizeof(Status) * kRanks);
    for (int r = 0; r < kRanks; r++) {
      const CUdeviceptr heap = base + stride * static_cast<uint64_t>(r);
      NEED(cuMemsetD8, heap, 0, layout.inboxOffset);
      NEED(cuMemsetD8, heap + layout.inboxOffset, 0xff, layout.inboxBytes);
      Call& c = calls[r];
      c.team = {reinterpret_cast<char*>(base), stride, r, kRanks, kRanks, 256, kSlotBytes, 10000000000, 40000000000, static_cast<Status*>(status) + r};
      c.send = reinterpret_cast<char*>(heap) + layout.bytes;
      c.recv = const_cast<char*>(c.send);
      c.count = kCount;
      c.call = {2, RH_F32, RH_SUM, railhead::kNoRoot, kCount, 0, 0, 0};
      c.root = -1;
      c.stream = 1;
      config[r] = {1, 1, 1, 64, 1, 1, 0, streams[r], nullptr, 0};
    }
    NEED(cuCtxSynchronize);
  }
  CUresult launch(int r) {
    void* parameters[] = {&calls[r]};
    return driver.cuLaunchKernelEx(&config[r], kernel, parameters, nullptr);
  }
};

// Two ranks of one library.
struct Library {
  decltype(&rh_connect) connect;
  decltype(&rh_comm_init) init;
  decltype(&rh_all_reduce) allReduce;
  decltype(&rh_last_error_message) message;
  rh_comm* comms[kRanks] = {};
  void* buffers[kRanks];

  Library(const char* path, const char* group, const char* record) {
    setenv("RAILHEAD_FLIGHT_RECORD", record, 1);
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) die(path, dlerror());
    find(library, "rh_connect", &connect);
    find(library, "rh_comm_init", &init);
    find(library, "rh_all_reduce", &allReduce);
    find(library, "rh_last_error_message", &message);
    std::thread threads[kRanks];
    for (int r = 0; r < kRanks; r++) threads[r] = std::thread([this, r, group] { form(r, group); });
    for (auto& t : threads) t.join();
  }

 private:
  template <class F>
  static void find(void* library, const char* name, F* out) {
    *out = reinterpret_cast<F>(dlsym(library, name));
    if (*out == nullptr) die(name, dlerror());
  }
  void form(int r, const char* group) {
    enter();
    rh_session* session;
    if (connect(nullptr, &session) != RH_OK) die("rh_connect", message());
    rh_comm_config config = RH_COMM_CONFIG_INIT;
    config.group = group;
    config.token = "overhead";
    config.rank = r;
    config.world_size = kRanks;
    config.device_kind = RH_DEVICE_CUDA;
    config.device_ordinal = 0;
    if (init(session, &config, &comms[r]) != RH_OK) die("rh_comm_init", message());
    CUdeviceptr buffer;
    NEED(cuMemAlloc, &buffer, kCount * sizeof(float));
    NEED(cuMemsetD8, buffer, 0, kCount * sizeof(float));
    buffers[r] = reinterpret_cast<void*>(buffer);
  }
};

// Calls once for a rank. An error ends the program.
using Loop = std::function<void(int rank)>;

struct Contender {
  std::string name;
  Loop loop;
  std::vector<double> ns[2];  // of a call: one thread, two threads
};

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

template <class F>
Loop repeat(F call) {
  return [call](int rank) {
    for (int i = 0; i < kCalls; i++) call(rank);
  };
}

double timeOf(const Contender& c, int rank) {
  const int64_t begin = now();
  c.loop(rank);
  return static_cast<double>(now() - begin) / kCalls;
}

void measure(Contender& c) {
  double ns[kRanks];
  for (int r = 0; r < kRanks; r++) ns[r] = timeOf(c, r);
  for (CUstream s : streams) NEED(cuStreamSynchronize, s);
  c.ns[0].push_back((ns[0] + ns[1]) / kRanks);
  std::thread other([&] {
    enter();
    ns[1] = timeOf(c, 1);
  });
  ns[0] = timeOf(c, 0);
  other.join();
  for (CUstream s : streams) NEED(cuStreamSynchronize, s);
  c.ns[1].push_back((ns[0] + ns[1]) / kRanks);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Differences of the same round.
std::vector<double> beyond(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> d;
  for (size_t i = 0; i < a.size(); i++) d.push_back(a[i] - b[i]);
  return d;
}

void print(const std::vector<Contender>& all) {
  printf("2 ranks on one GPU, 16 bytes, f32, %d calls x %d rounds; ns a call on the host, medians\n", kCalls, kRounds);
  printf("%-60s %10s %10s %10s %10s\n", "", "one thread", "beyond", "two", "beyond");
  for (const Contender& c : all) {
    printf("%-60s %10.0f %10.0f %10.0f %10.0f\n", c.name.c_str(), median(c.ns[0]), median(beyond(c.ns[0], all[0].ns[0])), median(c.ns[1]),
           median(beyond(c.ns[1], all[0].ns[1])));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) die("usage", "overhead IMAGE [LIBRARY ...]");
  loadDriver();
  NEED(cuInit, 0);
  CUdevice device;
  NEED(cuDeviceGet, &device, 0);
  NEED(cuDevicePrimaryCtxRetain, &context, device);
  enter();
  for (CUstream& s : streams) NEED(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
  Bare bare(argv[1]);

  std::vector<Contender> all;
  all.push_back({"cuLaunchKernelEx", repeat([&](int r) { need(bare.launch(r), "cuLaunchKernelEx"); }), {}});
  const auto before = [&](const char* name, auto call) {
    all.push_back({std::string(name) + ", then the launch", repeat([&bare, call](int r) {
      call(r);
      need(bare.launch(r), "cuLaunchKernelEx");
    }), {}});
  };
  before("cuCtxGetCurrent", [](int) {
    CUcontext current;
    NEED(cuCtxGetCurrent, &current);
  });
  before("cuStreamIsCapturing", [](int r) {
    CUstreamCaptureStatus status;
    NEED(cuStreamIsCapturing, streams[r], &status);
  });
  before("cuStreamGetCaptureInfo", [](int r) {
    CUstreamCaptureStatus status;
    uint64_t id;
    CUgraph graph;
    NEED(cuStreamGetCaptureInfo, streams[r], &status, &id, &graph, nullptr, nullptr, nullptr);
  });
  before("the clock twice", [](int) {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    clock_gettime(CLOCK_MONOTONIC, &t);
  });
  std::vector<Library*> libraries;
  for (int i = 2; i < argc; i++) {
    for (const char* record : {"on", "off"}) {
      const std::string group = std::string("overhead ") + std::to_string(i) + record;
      auto* l = new Library(argv[i], group.c_str(), record);
      libraries.push_back(l);
      all.push_back({std::string(argv[i]) + (strcmp(record, "on") == 0 ? "" : ", no flight record"), repeat([l](int r) {
        if (l->allReduce(l->buffers[r], l->buffers[r], kCount, RH_F32, RH_SUM, l->comms[r], streams[r]) != RH_OK) die("rh_all_reduce", l->message());
      }), {}});
    }
  }
  for (auto& c : all) measure(c);  // warms up
  for (auto& c : all) c.ns[0].clear(), c.ns[1].clear();
  for (int round = 0; round < kRounds; round++) {
    for (size_t i = 0; i < all.size(); i++) measure(all[(i + static_cast<size_t>(round)) % all.size()]);
  }
  print(all);
  fflush(stdout);
  _exit(0);  // the daemon sees that the ranks are gone
}
