// How calls come in: the two functions that the library exports, counting of calls, and failures on order.
#include <string.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "device/cuda/fake/c/fake.h"

namespace railhead::fake {

std::mutex world;
fake_cuda_account account = {};

const char* environment(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value != nullptr && value[0] != '\0' ? value : otherwise;
}

long environmentNumber(const char* name, long otherwise) {
  const char* value = environment(name, nullptr);
  return value != nullptr ? strtol(value, nullptr, 10) : otherwise;
}

namespace {

int driverVersion() { return static_cast<int>(environmentNumber("RAILHEAD_FAKE_CUDA_VERSION", 13000)); }

// Which call is to fail.
struct Order {
  std::string function;
  long nth = 0;  // calls until then; 0 = none
  CUresult code = CUDA_SUCCESS;
};

std::mutex calls;  // guards what follows
std::map<std::string, long> counts;
Order order;
bool ordersRead = false;
std::string delayed;  // the function whose calls wait, for so long
std::chrono::milliseconds delay{0};
pid_t initialized = 0;  // the process that called cuInit

// RAILHEAD_FAKE_CUDA_FAIL=function:nth:code
void readOrder() {
  if (ordersRead) return;
  ordersRead = true;
  const std::string text = environment("RAILHEAD_FAKE_CUDA_FAIL", "");
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return;
  order = {text.substr(0, first), atol(text.c_str() + first + 1), static_cast<CUresult>(atol(text.c_str() + second + 1))};
}

bool isText(const char* name) { return strncmp(name, "cuGetError", 10) == 0; }

void waitIfDelayed(const char* name) {
  std::chrono::milliseconds wait{0};
  {
    const std::lock_guard<std::mutex> lock(calls);
    if (delayed == name) wait = delay;
  }
  if (wait.count() > 0) std::this_thread::sleep_for(wait);
}

// Begins a call: the error that it returns at once, or CUDA_SUCCESS.
CUresult begin(const char* name) {
  if (isText(name)) return CUDA_SUCCESS;
  if (inCallback) return CUDA_ERROR_NOT_PERMITTED;
  waitIfDelayed(name);
  const std::lock_guard<std::mutex> lock(calls);
  readOrder();
  counts[name]++;
  counts["*"]++;
  if (order.nth > 0 && (order.function == "*" || order.function == name) && --order.nth == 0) return order.code;
  if (strcmp(name, "cuInit") == 0) {
    if (initialized == 0) initialized = getpid();
  } else if (strcmp(name, "cuDriverGetVersion") != 0 && initialized == 0) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  return initialized == 0 || initialized == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;  // a forked child has no CUDA
}

struct Names {
#define RAILHEAD_FAKE_NAME(name, release, parameters) static constexpr const char name[] = #name;
  RAILHEAD_FAKE_FUNCTIONS(RAILHEAD_FAKE_NAME)
#undef RAILHEAD_FAKE_NAME
};

// The function that callers get: it counts, and fails on order.
template <const char* name, auto function>
struct Entry;
template <const char* name, class... Parameters, CUresult (*function)(Parameters...)>
struct Entry<name, function> {
  static CUresult call(Parameters... arguments) {
    const CUresult code = begin(name);
    return code == CUDA_SUCCESS ? function(arguments...) : code;
  }
};

struct Listed {
  const char* name;
  int release;
  void* address;
};

// RAILHEAD_FAKE_CUDA_HOLLOW: the functions of the data path do nothing, neither count nor fail, and take no lock.
CUresult launchesNothing(const CUlaunchConfig*, CUfunction, void**, void**) { return CUDA_SUCCESS; }
CUresult seesNoCapture(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult knowsNoCapture(CUstream stream, CUstreamCaptureStatus* status, uint64_t*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**, size_t*) {
  return seesNoCapture(stream, status);
}
CUresult knowsCurrent(CUcontext* context) {
  *context = current();
  return CUDA_SUCCESS;
}

void* hollowOf(const char* name) {
  static const bool on = environmentNumber("RAILHEAD_FAKE_CUDA_HOLLOW", 0) != 0;
  if (!on) return nullptr;
  if (strcmp(name, "cuLaunchKernelEx") == 0) return reinterpret_cast<void*>(launchesNothing);
  if (strcmp(name, "cuStreamIsCapturing") == 0) return reinterpret_cast<void*>(seesNoCapture);
  if (strcmp(name, "cuStreamGetCaptureInfo") == 0) return reinterpret_cast<void*>(knowsNoCapture);
  if (strcmp(name, "cuCtxGetCurrent") == 0) return reinterpret_cast<void*>(knowsCurrent);
  return nullptr;
}

const Listed* listed(const char* name) {
  static const Listed kAll[] = {
#define RAILHEAD_FAKE_LIST(name, release, parameters) {#name, release, reinterpret_cast<void*>(&Entry<Names::name, &fake::name>::call)},
      RAILHEAD_FAKE_FUNCTIONS(RAILHEAD_FAKE_LIST)
#undef RAILHEAD_FAKE_LIST
  };
  for (const Listed& l : kAll) {
    if (strcmp(l.name, name) == 0) return &l;
  }
  return nullptr;
}

// Appends what this process still holds to the file RAILHEAD_FAKE_CUDA_ACCOUNT, when it exits.
__attribute__((destructor)) void writeAccount() {
  const char* path = environment("RAILHEAD_FAKE_CUDA_ACCOUNT", nullptr);
  if (path == nullptr || initialized != getpid()) return;
  fake_cuda_account a;
  fake_cuda_read_account(&a);
  char line[512];
  const int n = snprintf(line, sizeof line,
                         "contexts=%ld streams=%ld events=%ld graphs=%ld execs=%ld user_objects=%ld modules=%ld reservations=%ld handles=%ld "
                         "mappings=%ld allocations=%ld opened=%ld pinned=%ld\n",
                         a.contexts, a.streams, a.events, a.graphs, a.execs, a.user_objects, a.modules, a.reservations, a.handles, a.mappings,
                         a.allocations, a.opened, a.pinned);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line, static_cast<size_t>(n)) != n) perror("the fake driver cannot write its account");
  if (fd >= 0) close(fd);
}

}  // namespace

CUresult cuDriverGetVersion(int* version) {
  *version = driverVersion();
  return CUDA_SUCCESS;
}

}  // namespace railhead::fake

using namespace railhead::fake;

#pragma GCC visibility push(default)
extern "C" {

void fake_cuda_read_account(fake_cuda_account* out) {
  const std::lock_guard<std::mutex> lock(world);
  *out = account;
}

void fake_cuda_fail(const char* function, long nth, unsigned int code) {
  const std::lock_guard<std::mutex> lock(calls);
  ordersRead = true;
  order = {function, nth, static_cast<CUresult>(code)};
}

void fake_cuda_delay(const char* function, unsigned int milliseconds) {
  const std::lock_guard<std::mutex> lock(calls);
  delayed = function;
  delay = std::chrono::milliseconds(milliseconds);
}

long fake_cuda_calls(const char* function) {
  const std::lock_guard<std::mutex> lock(calls);
  return counts[function];
}

CUresult cuDriverGetVersion(int* version) { return railhead::fake::Entry<railhead::fake::Names::cuDriverGetVersion, &railhead::fake::cuDriverGetVersion>::call(version); }

CUresult cuGetProcAddress_v2(const char* name, void** address, int version, uint64_t flags, CUdriverProcAddressQueryResult* found) {
  *address = nullptr;
  *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const auto* l = railhead::fake::listed(name);
  if (l == nullptr || flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM) return CUDA_ERROR_NOT_FOUND;
  *found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  // Only the release with these parameters: an earlier or later function of that name may have others.
  if (version != l->release || l->release > railhead::fake::driverVersion()) return CUDA_ERROR_NOT_FOUND;
  void* instead = railhead::fake::hollowOf(name);
  *address = instead != nullptr ? instead : l->address;
  *found = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
