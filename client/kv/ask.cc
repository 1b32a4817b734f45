// Requests to the proxy, over the agent's socket.
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "host/futex.h"
#include "kv/agent.h"
#include "session/session.h"

namespace railhead::client {

rh_result KvAgent::ask(const char* operation, void* message, uint32_t type, size_t size, const void* list, size_t listBytes, int fd,
                       rhk_result* answer, void* answerList, size_t answerBytes) {
  if (size + listBytes > RHK_MAX_MESSAGE) {
    return fail(RH_ERR_LIMIT, "%s: agent %s: a list of %zu bytes: at most %zu in one call", operation, name_, listBytes, RHK_MAX_MESSAGE - size);
  }
  pthread_mutex_lock(&asking_);
  auto* h = static_cast<rhk_header*>(message);
  *h = {RHK_MAGIC, type, static_cast<uint32_t>(size + listBytes), 0, ++request_};
  const int64_t deadline = host::nowNs() + timeoutNs_;
  const int error = sendPacket(socket_, message, size, list, listBytes, fd, deadline);
  rh_result result = RH_OK;
  if (error == EPIPE || error == ECONNRESET) {
    result = lost(operation);
  } else if (error != 0) {
    result = fail(error == ETIMEDOUT ? RH_ERR_TIMEOUT : RH_ERR_SYSTEM, "%s: agent %s: the proxy does not take the request: %s", operation, name_, strerror(error));
  } else {
    result = awaitAnswer(operation, request_, answer, answerList, answerBytes, deadline);
  }
  pthread_mutex_unlock(&asking_);
  return result;
}

rh_result KvAgent::awaitAnswer(const char* operation, uint64_t request, rhk_result* answer, void* list, size_t listBytes, int64_t deadlineNs) {
  for (;;) {
    iovec parts[2] = {{answer, sizeof *answer}, {list, listBytes}};
    msghdr m = {};
    m.msg_iov = parts;
    m.msg_iovlen = 2;
    const ssize_t n = recvmsg(socket_, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return lost(operation);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return fail(RH_ERR_SYSTEM, "%s: agent %s: receive: %s", operation, name_, strerror(errno));
    if (n < 0) {
      if (host::nowNs() >= deadlineNs) {
        return fail(RH_ERR_TIMEOUT, "%s: agent %s: the proxy did not answer in time: it is stopped or overloaded; see the daemon's log", operation, name_);
      }
      pollOne(socket_, POLLIN, deadlineNs);
      continue;
    }
    const auto size = static_cast<size_t>(n);
    if (size < sizeof *answer || answer->h.magic != RHK_MAGIC || answer->h.type != RHK_RESULT || (m.msg_flags & MSG_TRUNC) != 0) {
      return fail(RH_ERR_PROTOCOL, "%s: agent %s: %zd bytes in place of a Result", operation, name_, n);
    }
    if (answer->h.request != request) continue;  // of a call that gave up
    answer->text[RHK_TEXT - 1] = '\0';
    if (answer->code != RH_OK) return fail(static_cast<rh_result>(answer->code), "%s: agent %s: %s", operation, name_, answer->text);
    return RH_OK;
  }
}

void KvAgent::keep(KvMemory* memory) {
  pthread_mutex_lock(&mutex_);
  memory->next = memories_;
  memories_ = memory;
  pthread_mutex_unlock(&mutex_);
}

KvMemory* KvAgent::take(uint32_t region) {
  pthread_mutex_lock(&mutex_);
  KvMemory** p = &memories_;
  while (*p != nullptr && (*p)->region != region) p = &(*p)->next;
  KvMemory* found = *p;
  if (found != nullptr) *p = found->next;
  pthread_mutex_unlock(&mutex_);
  return found;
}

void KvAgent::noteCache(uint32_t cache, uint32_t blockTokens) {
  pthread_mutex_lock(&mutex_);
  if (cache <= RHK_MAX_CACHES) tokens_[cache] = blockTokens;
  pthread_mutex_unlock(&mutex_);
}

uint32_t KvAgent::blockTokens(uint32_t cache) {
  pthread_mutex_lock(&mutex_);
  const uint32_t tokens = cache <= RHK_MAX_CACHES ? tokens_[cache] : 0;
  pthread_mutex_unlock(&mutex_);
  return tokens;
}

}  // namespace railhead::client
