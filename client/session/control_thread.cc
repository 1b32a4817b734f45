#include "session/control_thread.h"

#include <errno.h>
#include <stdint.h>
#include <link.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "host/futex.h"

namespace railhead::client {

namespace {

// What the thread itself needs, of which PTHREAD_STACK_MIN is a small part.
constexpr size_t kStackBytes = 256 * 1024;

// Bytes of thread-local variables of the program and of all libraries that are loaded now. The C library puts those that were loaded with
// the program, and some more, on each thread's stack.
size_t threadLocalBytes() {
  size_t bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* sum) {
        for (int i = 0; i < module->dlpi_phnum; i++) {
          const auto& part = module->dlpi_phdr[i];
          if (part.p_type == PT_TLS) *static_cast<size_t*>(sum) += part.p_memsz + part.p_align;
        }
        return 0;
      },
      &bytes);
  return bytes;
}

enum class What { kWatch, kUnwatch, kTakeLease, kDropLease, kStop };

struct Command {
  What what;
  Session* session;
  HeldLease* lease;
  bool done;
  Command* next;
};

// All state of the thread. mutex guards commands, start and stop; the other fields are used by the thread only.
struct Control {
  pthread_mutex_t lifecycle = PTHREAD_MUTEX_INITIALIZER;  // one start or stop at a time
  int users = 0;                                          // sessions; guarded by lifecycle
  pthread_t thread;
  int event = -1;

  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t done = PTHREAD_COND_INITIALIZER;
  Command* commands = nullptr;

  Session* sessions[kMaxSessions];
  int count = 0;
  HeldLease* held = nullptr;  // the latest first
  robust_list_head leases;    // the same leases in the same order, for the kernel
};

Control control;

robust_list* nodeOf(rhw_lease* lease) { return reinterpret_cast<robust_list*>(lease); }

// The kernel defines the list (linux/futex.h): a node is the first word of a lease, and its futex word lies futex_offset bytes after
// it. Only this thread may write a lease word, because the kernel marks the words that hold this thread's id.
void initLeases() {
  static_assert(offsetof(rhw_lease, next) == 0, "the node is a lease's first word");
  control.leases.list.next = &control.leases.list;
  control.leases.futex_offset = offsetof(rhw_lease, word);
  control.leases.list_op_pending = nullptr;
  syscall(SYS_set_robust_list, &control.leases, sizeof control.leases);
}

// The kernel's link to the leases from `first` on.
robust_list* linkTo(HeldLease* first) { return first == nullptr ? &control.leases.list : nodeOf(first->lease); }

// Link the node before setting the word, so that a word with this thread's id is in the list at any time. A death in between leaves a word
// without an owner; the socket detects that death.
void doTakeLease(HeldLease* held) {
  rhw_lease* lease = held->lease;
  nodeOf(lease)->next = linkTo(control.held);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  held->next = control.held;
  control.held = held;
  control.leases.list.next = nodeOf(lease);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  // Release: a reader that sees the lease taken also sees what its holder wrote before. A daemon sleeps on the word's old value.
  __atomic_store_n(&lease->word, static_cast<uint32_t>(syscall(SYS_gettid)), __ATOMIC_RELEASE);
  host::futexWakeAll(&lease->word);
}

// Clear the word before unlinking the node, for the same reason. A death in between would leave a word that no one clears or marks, and the
// other ranks and the next daemon would take the rank for alive.
void doDropLease(HeldLease* held) {
  __atomic_store_n(&held->lease->word, 0, __ATOMIC_RELEASE);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  robust_list* before = &control.leases.list;
  for (HeldLease** link = &control.held; *link != nullptr; link = &(*link)->next) {
    if (*link == held) {
      *link = held->next;
      before->next = linkTo(held->next);
      break;
    }
    before = nodeOf((*link)->lease);
  }
  host::futexWakeAll(&held->lease->word);
}

void doUnwatch(Session* session) {
  for (int i = 0; i < control.count; i++) {
    if (control.sessions[i] != session) continue;
    control.count--;
    control.sessions[i] = control.sessions[control.count];
    return;
  }
}

// Returns false when the thread must stop.
bool runCommands() {
  bool stop = false;
  pthread_mutex_lock(&control.mutex);
  while (control.commands != nullptr) {
    Command* c = control.commands;
    control.commands = c->next;
    switch (c->what) {
      case What::kWatch:
        control.sessions[control.count++] = c->session;
        doTakeLease(c->session->heldLease());
        break;
      case What::kUnwatch:
        doDropLease(c->session->heldLease());
        doUnwatch(c->session);
        break;
      case What::kTakeLease: doTakeLease(c->lease); break;
      case What::kDropLease: doDropLease(c->lease); break;
      case What::kStop: stop = true; break;
    }
    c->done = true;
  }
  pthread_cond_broadcast(&control.done);
  pthread_mutex_unlock(&control.mutex);
  return !stop;
}

// Does what is due for one member and returns the time of its next work.
int64_t tend(Member* member, int64_t now) {
  const bool watched = !member->kind->isBroken(member) && member->session->tend(member);
  return member->kind->tick(member, watched, now);
}

// Does what is due and returns the time until the next work, as a timeout of poll in milliseconds.
int tick() {
  const int64_t now = host::nowNs();
  int64_t next = INT64_MAX;
  for (int i = 0; i < control.count; i++) {
    const int64_t at = control.sessions[i]->tick(now);
    if (at < next) next = at;
  }
  forEachMember([&](Member* member) {
    const int64_t at = tend(member, now);
    if (at < next) next = at;
  });
  if (next == INT64_MAX) return -1;
  return next <= now ? 0 : static_cast<int>((next - now) / 1000000 + 1);
}

void* run(void*) {
  pthread_setname_np(pthread_self(), "railhead");
  initLeases();
  pollfd fds[kMaxSessions + 1];
  for (;;) {
    const int timeout = tick();
    fds[0] = {control.event, POLLIN, 0};
    for (int i = 0; i < control.count; i++) {
      // poll skips a negative descriptor: a session between two connections, or one that has ended but is not closed.
      fds[i + 1] = {control.sessions[i]->descriptor(), POLLIN, 0};
    }
    const int count = control.count;
    if (poll(fds, static_cast<nfds_t>(count) + 1, timeout) < 0 && errno != EINTR) {
      // The kernel is out of memory, or a limit is now below the number of sessions. Retry: if this thread ended, its leases would be
      // marked dead and callers would wait for it forever.
      const timespec pause = {0, 10 * 1000 * 1000};
      nanosleep(&pause, nullptr);
      fds[0].revents = POLLIN;
    }
    const int64_t now = host::nowNs();
    for (int i = 0; i < count; i++) {
      if (fds[i + 1].revents != 0) control.sessions[i]->readable(now);
    }
    if (fds[0].revents != 0) {
      uint64_t ignored;
      // The eventfd only wakes the thread, so an empty or interrupted read is harmless.
      (void)!read(control.event, &ignored, sizeof ignored);
      if (!runCommands()) return nullptr;
    }
  }
}

void tell(What what, Session* session, HeldLease* lease) {
  Command c = {what, session, lease, false, nullptr};
  pthread_mutex_lock(&control.mutex);
  c.next = control.commands;
  control.commands = &c;
  nudgeControlThread();
  while (!c.done) pthread_cond_wait(&control.done, &control.mutex);
  pthread_mutex_unlock(&control.mutex);
}

rh_result start() {
  control.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (control.event < 0) return fail(RH_ERR_SYSTEM, "connect: eventfd: %s", strerror(errno));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes + threadLocalBytes());
  // The thread inherits the signal mask, so the application's handlers never run on it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&control.thread, &attributes, run, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error == 0) return RH_OK;
  close(control.event);
  control.event = -1;
  return fail(RH_ERR_SYSTEM, "connect: cannot start the control thread: %s", strerror(error));
}

}  // namespace

void forgetControlThread() {
  pthread_mutex_init(&control.lifecycle, nullptr);
  pthread_mutex_init(&control.mutex, nullptr);
  pthread_cond_init(&control.done, nullptr);
  if (control.event >= 0) close(control.event);
  control.event = -1;
  control.users = 0;
  control.count = 0;
  control.held = nullptr;
  control.commands = nullptr;
}

rh_result watchSession(Session* session) {
  pthread_mutex_lock(&control.lifecycle);
  rh_result result = RH_OK;
  if (control.users == kMaxSessions) {
    result = fail(RH_ERR_LIMIT, "connect: this process has %d sessions, the most there can be", kMaxSessions);
  } else if (control.users == 0) {
    result = start();
  }
  if (result == RH_OK) {
    control.users++;
    tell(What::kWatch, session, nullptr);
  }
  pthread_mutex_unlock(&control.lifecycle);
  return result;
}

void unwatchSession(Session* session) {
  pthread_mutex_lock(&control.lifecycle);
  tell(What::kUnwatch, session, nullptr);
  if (--control.users == 0) {
    tell(What::kStop, nullptr, nullptr);
    pthread_join(control.thread, nullptr);
    close(control.event);
    control.event = -1;
  }
  pthread_mutex_unlock(&control.lifecycle);
}

void nudgeControlThread() {
  const uint64_t one = 1;
  while (write(control.event, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void takeLease(HeldLease* held) { tell(What::kTakeLease, nullptr, held); }
void dropLease(HeldLease* held) { tell(What::kDropLease, nullptr, held); }

}  // namespace railhead::client
