// rh_connect and rh_close.
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/settings.h"
#include "host/futex.h"
#include "session/control_thread.h"
#include "session/session.h"
#include "session/socket.h"

namespace railhead::client {

namespace {

// Waits sleep on two words at once, which needs futex_waitv. Without it the library would have to spin, so connect fails instead. The
// probe has three answers: works, does not work, could not find out. Each rh_connect probes again.
rh_result checkFutexWaitv() {
  const uint32_t word = 0;
  // The words differ from the expected values, so a kernel that has the call returns at once.
  const int error = host::futexWait2(&word, 1, &word, 1, host::nowNs());
  if (error == EAGAIN || error == ETIMEDOUT || error == 0) return RH_OK;
  if (error != ENOSYS && error != EPERM && error != EACCES && error != EINVAL) {
    return fail(RH_ERR_SYSTEM, "connect: cannot find out whether futex_waitv works here (%s); try again", strerror(error));
  }
  return fail(RH_ERR_UNSUPPORTED,
              "connect: futex_waitv does not work here (%s): Linux 5.16 or newer is needed, and a container's seccomp "
              "profile must allow it",
              strerror(error));
}

bool anyMemberBusy(const Session* session) {
  bool busy = false;
  for (const MemberKind* k = memberKinds(); k != nullptr; k = k->next) busy = busy || k->anyBusy(session);
  return busy;
}

ForkHandler forkHandler = {[] {
  sessions().forget([](Session* session) { session->closeDescriptors(); });
  forgetControlThread();
}};

rh_result prepareForForks() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { addForkHandler(&forkHandler); });
  return watchForks();
}

rh_result connectSession(const char* path, uint32_t timeout, rh_session** out) {
  const int64_t deadline = host::nowNs() + int64_t{timeout} * 1000000;
  int fd = -1;
  rh_result result = openSocket(path, deadline, &fd);
  if (result != RH_OK) return result;
  auto* session = new Session(fd, path);
  if (session == nullptr) {
    close(fd);
    return fail(RH_ERR_OUT_OF_MEMORY, "connect: no memory for a session");
  }
  result = session->handshake(deadline);
  if (result == RH_OK) result = watchSession(session);
  if (result == RH_OK) session->announceLease(deadline);
  if (result != RH_OK) {
    delete session;
    return result;
  }
  *out = static_cast<rh_session*>(sessions().insert(session));
  if (*out != nullptr) return RH_OK;
  unwatchSession(session);
  delete session;
  return fail(RH_ERR_LIMIT, "connect: this process has %d sessions, the most there can be", kMaxSessions);
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_connect(const rh_session_config* config, rh_session** out) {
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "connect: session is NULL");
  *out = nullptr;
  rh_session_config c = RH_SESSION_CONFIG_INIT;
  rh_result result = config == nullptr ? RH_OK : readStruct("connect", "config", config, &c);
  char path[kMaxSocketPath + 1];
  uint32_t timeout;
  if (result == RH_OK) result = socketPath(c.socket_path, path);
  if (result == RH_OK) result = timeoutMs(c.timeout_ms, "connect", &timeout);
  if (result == RH_OK) result = checkFutexWaitv();
  if (result == RH_OK) result = prepareForForks();
  if (result != RH_OK) return result;
  return connectSession(path, timeout, out);
}

extern "C" rh_result rh_close(rh_session* handle) {
  {
    HandleTable<Session, kMaxSessions>::Shared ref(sessions(), handle);
    if (ref.get() == nullptr) {
      return fail(RH_ERR_INVALID_HANDLE, "close: not a live session: was it closed before?");
    }
    if (anyMemberBusy(ref.get())) {
      return fail(RH_ERR_BUSY, "close: another thread is inside a call on a comm of this session; rh_comm_abort ends it");
    }
    ref.get()->shutDown();  // ends a comm_init of another thread, so that remove() does not wait long
  }
  Session* session = sessions().remove(handle);
  if (session == nullptr) return fail(RH_ERR_INVALID_HANDLE, "close: another thread closed this session");
  for (const MemberKind* k = memberKinds(); k != nullptr; k = k->next) k->abandon(session);
  unwatchSession(session);
  delete session;
  return RH_OK;
}
