// What rh_window_register and rh_window_get_sharing refuse, and what a forked child may do with registered memory. One rank, then two.
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "check.h"

namespace {

constexpr size_t kBytes = 8192;

int makeMemfd() {
  const int fd = memfd_create("ctest-owned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, kBytes) == 0);
  return fd;
}

void* mapMemfd(int fd) {
  void* p = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(p != MAP_FAILED);
  return p;
}

void refusals(rh_comm* comm, void* memory, int fd) {
  rh_window* window = reinterpret_cast<rh_window*>(uintptr_t{1});
  rh_register_config config = RH_REGISTER_CONFIG_INIT;
  config.pointer = memory;
  config.bytes = kBytes;
  config.fd = fd;
  FAILS(rh_window_register(comm, &config, nullptr), RH_ERR_INVALID_ARGUMENT, "window_register", "window is NULL");
  FAILS(rh_window_register(comm, nullptr, &window), RH_ERR_INVALID_ARGUMENT, "window_register: rank 0", "config is NULL");
  CHECK(window == nullptr);
  config.struct_size = 8;
  FAILS(rh_window_register(comm, &config, &window), RH_ERR_INVALID_ARGUMENT, "size 8", "RH_REGISTER_CONFIG_INIT");
  config.struct_size = sizeof config;
  config.struct_version = 0;
  FAILS(rh_window_register(comm, &config, &window), RH_ERR_INVALID_ARGUMENT, "version 0", "RH_REGISTER_CONFIG_INIT");
  config.struct_version = 1;
  config.pointer = nullptr;
  FAILS(rh_window_register(comm, &config, &window), RH_ERR_INVALID_ARGUMENT, "window_register: rank 0", "pointer is NULL");
  config.pointer = memory;
  for (size_t bytes : {size_t{0}, (size_t{1} << 40) + 1, SIZE_MAX}) {
    config.bytes = bytes;
    FAILS(rh_window_register(comm, &config, &window), RH_ERR_INVALID_ARGUMENT, "window_register: rank 0", "1 TiB");
  }
  config.bytes = size_t{1} << 40;
  FAILS(rh_window_register(comm, &config, &window), RH_ERR_INVALID_ARGUMENT, "1099511627776 bytes", "are mapped");
  config.bytes = kBytes;
  config.fd = 1 << 20;
  FAILS(rh_window_register(comm, &config, &window), RH_ERR_INVALID_ARGUMENT, "fd 1048576", "window_register: rank 0");
  CHECK(window == nullptr);
}

void sharing(rh_window* window, int wantZeroCopy, const char* word) {
  rh_window_sharing s = RH_WINDOW_SHARING_INIT;
  FAILS(rh_window_get_sharing(window, nullptr), RH_ERR_INVALID_ARGUMENT, "window_get_sharing", "NULL");
  s.struct_size = 4;
  FAILS(rh_window_get_sharing(window, &s), RH_ERR_INVALID_ARGUMENT, "size 4", "RH_WINDOW_SHARING_INIT");
  s = RH_WINDOW_SHARING_INIT;
  s.struct_version = 0;
  FAILS(rh_window_get_sharing(window, &s), RH_ERR_INVALID_ARGUMENT, "version 0", "RH_WINDOW_SHARING_INIT");
  s = RH_WINDOW_SHARING_INIT;
  OK(rh_window_get_sharing(window, &s));
  CHECK(s.zero_copy == wantZeroCopy && s.rank == (wantZeroCopy ? -1 : 0));
  CHECK((s.reason[0] == '\0') == (wantZeroCopy != 0) && strstr(s.reason, word) != nullptr);
}

rh_window* registerMemory(rh_comm* comm, void* memory, int fd) {
  rh_window* window = nullptr;
  rh_register_config config = RH_REGISTER_CONFIG_INIT;
  config.pointer = memory;
  config.bytes = kBytes;
  config.fd = fd;
  OK(rh_window_register(comm, &config, &window));
  return window;
}

// The child shares the memory with the parent, but the window is not valid in it.
void forked(rh_window* window, char* memory) {
  memory[1] = 0;
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    rh_window_sharing s = RH_WINDOW_SHARING_INIT;
    alarm(60);
    FAILS(rh_window_get_sharing(window, &s), RH_ERR_INVALID_HANDLE, "window_get_sharing", "");
    FAILS(rh_window_free(window), RH_ERR_INVALID_HANDLE, "window_free", "");
    memory[1] = 1;
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(memory[1] == 1);
}

int mappingsOfMemfds() { return mappings_of("/memfd:ctest-owned"); }

// A rank of two in one process. Each maps the other's memory besides its own.
struct Rank {
  int number;
  char* memory;
  int fd;
  rh_session* session;
  rh_comm* comm;
  rh_window* window;
  pthread_t thread;
};

void* registerOne(void* p) {
  auto* r = static_cast<Rank*>(p);
  const rh_comm_config config = comm_config("registration of two", r->number, 2);
  r->session = open_session();
  OK(rh_comm_init(r->session, &config, &r->comm));
  r->window = registerMemory(r->comm, r->memory, r->fd);
  return nullptr;
}

void* endOne(void* p) {
  auto* r = static_cast<Rank*>(p);
  OK(rh_comm_finalize(r->comm));
  OK(rh_close(r->session));
  return nullptr;
}

// A child that kept a peer's memory mapped would keep it from being freed.
void childMapsNoPeersMemory() {
  Rank ranks[2] = {};
  for (Rank& r : ranks) {
    r.number = static_cast<int>(&r - ranks);
    r.fd = makeMemfd();
    r.memory = static_cast<char*>(mapMemfd(r.fd));
  }
  const int own = mappingsOfMemfds();
  const auto both = [&](void* (*run)(void*)) {
    for (Rank& r : ranks) CHECK(pthread_create(&r.thread, nullptr, run, &r) == 0);
    for (Rank& r : ranks) CHECK(pthread_join(r.thread, nullptr) == 0);
  };
  both(registerOne);
  CHECK(mappingsOfMemfds() == own + 2);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    CHECK(mappingsOfMemfds() == own);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  both(endOne);
  CHECK(mappingsOfMemfds() == own);
}

}  // namespace

int main() {
  rh_session* session = open_session();
  rh_comm* comm = nullptr;
  const rh_comm_config config = comm_config("registration", 0, 1);
  OK(rh_comm_init(session, &config, &comm));
  const int fd = makeMemfd();
  auto* shared = static_cast<char*>(mapMemfd(fd));
  refusals(comm, shared, fd);

  rh_window* window = registerMemory(comm, shared, fd);
  sharing(window, 1, "");
  rh_window_info info = RH_WINDOW_INFO_INIT;
  void* pointer = nullptr;
  OK(rh_window_get_info(window, &info));
  OK(rh_window_pointer(window, 0, &pointer));
  CHECK(info.bytes == kBytes && info.offset == 0 && info.memory == RH_MEMORY_HOST && pointer == shared);
  forked(window, shared);

  auto* heap = static_cast<char*>(malloc(kBytes));
  rh_window* staged = registerMemory(comm, heap, -1);
  sharing(staged, 0, "malloc");
  OK(rh_window_pointer(staged, 0, &pointer));
  CHECK(pointer == heap);
  OK(rh_window_free(staged));
  rh_window_sharing s = RH_WINDOW_SHARING_INIT;
  FAILS(rh_window_get_sharing(staged, &s), RH_ERR_INVALID_HANDLE, "window_get_sharing", "freed");
  free(heap);

  rh_window* allocated = nullptr;
  OK(rh_window_alloc(comm, 1, nullptr, &allocated));
  sharing(allocated, 1, "");
  OK(rh_window_free(window));
  OK(rh_comm_finalize(comm));
  FAILS(rh_window_register(comm, nullptr, &window), RH_ERR_INVALID_HANDLE, "window_register", "comm");
  OK(rh_close(session));
  CHECK(munmap(shared, kBytes) == 0 && close(fd) == 0);
  childMapsNoPeersMemory();
  return 0;
}
