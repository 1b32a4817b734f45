// What kernels can see while the control thread tells them that a death has broken the group (device/cuda/watch.cc). The memory that they poll is
// read-only here: each store faults, runs as a single step, and is followed by the look of a kernel.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "check.h"
#include "comm/comm.h"
#include "device/cuda/cuda_comm.h"
#include "railhead/ep/ep_links.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

namespace {

constexpr int kWorld = 40, kDead = 37;
constexpr uint64_t kDeadMask = uint64_t{1} << kDead;

railhead::gpu::Status* status;
size_t bytes;
int stores = 0;

template <class T>
T load(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

// A kernel that sees the word goes on only if it then sees that nothing but deaths has broken the group, and gives up those ranks only.
void look() {
  for (const auto& line : status->abort) {
    if (load(line.word) == 0) continue;
    CHECK(load(line.onlyDeaths) == 1);
    CHECK((uint64_t{load(line.dead[1])} << 32 | load(line.dead[0])) == kDeadMask);
  }
}

#if defined(__x86_64__)

constexpr greg_t kTrap = 0x100;  // the processor's flag of single steps

void onFault(int, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr), begin = reinterpret_cast<uintptr_t>(status);
  CHECK(at >= begin && at < begin + bytes);
  CHECK(mprotect(status, bytes, PROT_READ | PROT_WRITE) == 0);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= kTrap;
}
void onStep(int, siginfo_t*, void* context) {
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrap;
  CHECK(mprotect(status, bytes, PROT_READ) == 0);
  stores++;
  look();
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  CHECK(sigaction(signal, &action, nullptr) == 0);
}
void step() {
  handle(SIGSEGV, onFault);
  handle(SIGTRAP, onStep);
  CHECK(mprotect(status, bytes, PROT_READ) == 0);
}
constexpr int kStoresOfALine = 4;

#else

void step() {}
constexpr int kStoresOfALine = 0;

#endif

}  // namespace

int main() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes = (sizeof *status + page - 1) / page * page;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  status = static_cast<railhead::gpu::Status*>(p);

  static Comm comm = {};
  static CudaComm of;
  static rhw_rank_line lines[kWorld];
  const uint32_t abortWord = railhead::kAbortRankDead | uint32_t{kDead} << railhead::kAbortCulpritShift;
  for (rhw_rank_line& line : lines) line.lease.word = 1;
  comm.worldSize = kWorld;
  comm.localRank = LocalRank{0};
  comm.control = reinterpret_cast<char*>(lines);
  comm.parts.lines = {0, kWorld, sizeof *lines};
  comm.team.abortWord = &abortWord;
  comm.onDevice = &of;
  of.status = status;

  step();
  stopKernels(&comm);
  look();
  for (const auto& line : status->abort) CHECK(load(line.word) == 1);
  CHECK(stores == kStoresOfALine * static_cast<int>(sizeof status->abort / sizeof *status->abort));
  return 0;
}
