// The life of an agent: rh_kv_agent_create and rh_kv_agent_destroy.
#include "kv/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <initializer_list>
#include <poll.h>
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/settings.h"
#include "host/futex.h"
#include "session/session.h"

namespace railhead::client {

HandleTable<KvAgent, kMaxAgents>& kvAgents() {
  static HandleTable<KvAgent, kMaxAgents> table;
  return table;
}

rh_result notAnAgent(const char* operation) {
  return fail(RH_ERR_INVALID_HANDLE, "%s: not a live agent: was it destroyed before?", operation);
}

KvAgent::KvAgent(int socket) : socket_(socket) {
  for (uint32_t i = 0; i < kMaxOperations; i++) free_[i] = i;
}

KvAgent::~KvAgent() {
  for (const int fd : {socket_, proxyBell_, ownBell_}) {
    if (fd >= 0) close(fd);
  }
  if (base_ != nullptr) munmap(base_, bytes_);
  free(arenaAfter_);
}

void KvAgent::dropInChild() {
  for (const int fd : {socket_, proxyBell_, ownBell_}) {
    if (fd >= 0) close(fd);
  }
  if (base_ != nullptr) munmap(base_, bytes_);
  for (const KvMemory* m = memories_; m != nullptr; m = m->next) munmap(m->memory, m->bytes);
}

rh_result KvAgent::open(const char* name, uint32_t timeoutMs, int64_t deadlineNs) {
  snprintf(name_, sizeof name_, "%s", name);
  timeoutNs_ = int64_t{timeoutMs} * 1000000;
  int fds[RHK_DESCRIPTORS] = {-1, -1, -1};
  rh_result result = receiveHello(deadlineNs, fds);
  proxyBell_ = fds[1];
  ownBell_ = fds[2];
  if (result == RH_OK) result = mapSegment(fds[0], bytes_);
  if (fds[0] >= 0) close(fds[0]);
  return result;
}

rh_result KvAgent::receiveHello(int64_t deadlineNs, int fds[RHK_DESCRIPTORS]) {
  union {
    rhk_header h;
    rhk_hello hello;
    rhk_result refused;
  } m = {};
  alignas(cmsghdr) char control[CMSG_SPACE(RHK_DESCRIPTORS * sizeof(int))];
  iovec io = {&m, sizeof m};
  msghdr packet = {};
  packet.msg_iov = &io;
  packet.msg_iovlen = 1;
  packet.msg_control = control;
  packet.msg_controllen = sizeof control;
  ssize_t n = recvmsg(socket_, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (n < 0 && (errno == EAGAIN || errno == EINTR) && host::nowNs() < deadlineNs) {
    pollOne(socket_, POLLIN, deadlineNs);
    packet.msg_controllen = sizeof control;
    n = recvmsg(socket_, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return fail(RH_ERR_TIMEOUT, "kv_agent_create: agent %s: the proxy did not answer in time; see the daemon's log", name_);
  }
  if (n <= 0) return fail(RH_ERR_DAEMON_LOST, "kv_agent_create: agent %s: the proxy has ended; call again, and see the daemon's log", name_);
  const cmsghdr* c = CMSG_FIRSTHDR(&packet);
  if (c != nullptr && c->cmsg_type == SCM_RIGHTS) memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
  const auto size = static_cast<size_t>(n);
  if (size < sizeof m.h || m.h.magic != RHK_MAGIC || m.h.size != size) return fail(RH_ERR_PROTOCOL, "kv_agent_create: agent %s: the proxy's Hello is none", name_);
  if (m.h.type == RHK_RESULT && size == sizeof m.refused && m.refused.code != RH_OK) {
    m.refused.text[RHK_TEXT - 1] = '\0';
    return fail(static_cast<rh_result>(m.refused.code), "kv_agent_create: agent %s: %s", name_, m.refused.text);
  }
  if (m.h.type != RHK_HELLO || size != sizeof m.hello || fds[RHK_DESCRIPTORS - 1] < 0) {
    return fail(RH_ERR_PROTOCOL, "kv_agent_create: agent %s: message type %u in place of Hello, or without descriptors", name_, m.h.type);
  }
  if (m.hello.version != RHK_VERSION) {
    return fail(RH_ERR_VERSION_MISMATCH, "kv_agent_create: agent %s: the proxy speaks version %u, this library %u; update the older one", name_,
                m.hello.version, RHK_VERSION);
  }
  bytes_ = m.hello.segment_bytes;
  return RH_OK;
}

rh_result KvAgent::mapSegment(int fd, uint64_t bytes) {
  struct stat st;
  const int seals = fcntl(fd, F_GET_SEALS);
  bytes_ = 0;
  if (fstat(fd, &st) != 0 || static_cast<uint64_t>(st.st_size) != bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(RH_ERR_PROTOCOL, "kv_agent_create: agent %s: the segment is not of %llu bytes, or not sealed", name_, static_cast<unsigned long long>(bytes));
  }
  void* p = bytes < RHK_RINGS ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return fail(RH_ERR_SYSTEM, "kv_agent_create: agent %s: mmap: %s", name_, strerror(errno));
  base_ = static_cast<char*>(p);
  bytes_ = bytes;
  segment_ = static_cast<rhk_segment*>(p);
  entries_ = segment_->entries;
  arenaBytes_ = segment_->arena_bytes;
  inboxBytes_ = segment_->inbox_bytes;
  const auto isPower = [](uint64_t n) { return n != 0 && (n & (n - 1)) == 0; };
  const bool good = segment_->magic == RHK_SEGMENT_MAGIC && segment_->version == RHK_VERSION && isPower(entries_) && entries_ <= RHK_MAX_ENTRIES &&
                    isPower(arenaBytes_) && arenaBytes_ <= RHK_MAX_ARENA && isPower(inboxBytes_) && inboxBytes_ <= RHK_MAX_ARENA;
  if (!good || RHK_RINGS + entries_ * (sizeof(rhk_submission) + sizeof(rhk_completion)) + arenaBytes_ + inboxBytes_ != bytes) {
    return fail(RH_ERR_PROTOCOL, "kv_agent_create: agent %s: the segment's header does not fit its size", name_);
  }
  arenaAfter_ = static_cast<uint64_t*>(calloc(entries_, sizeof *arenaAfter_));
  if (arenaAfter_ == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "kv_agent_create: agent %s: no memory", name_);
  return RH_OK;
}

rh_result KvAgent::end() {
  shutdown(socket_, SHUT_WR);  // the proxy ends the agent, and then closes its end
  const int64_t deadline = host::nowNs() + timeoutNs_;
  for (;;) {
    char rest[64];
    const ssize_t n = recv(socket_, rest, sizeof rest, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (host::nowNs() >= deadline) {
      return fail(RH_ERR_TIMEOUT, "kv_agent_destroy: agent %s: the proxy does not end it; its memory stays mapped, because it may be written", name_);
    }
    if (n < 0) pollOne(socket_, POLLIN, deadline);
  }
  while (memories_ != nullptr) {
    KvMemory* m = memories_;
    memories_ = m->next;
    munmap(m->memory, m->bytes);
    delete m;
  }
  return RH_OK;
}

namespace {

ForkHandler forkHandler = {[] { kvAgents().forget([](KvAgent* agent) { agent->dropInChild(); }); }};

void prepareForForks() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { addForkHandler(&forkHandler); });
}

// Gets a socket to the proxy from the daemon.
rh_result askDaemon(Session* session, const char* name, int64_t deadline, int* socket) {
  Call call(*session, "kv_agent_create");
  rh_result result = call.open(nullptr, deadline);
  if (result != RH_OK) return result;
  rhw_kv_agent m = {};
  snprintf(m.name, sizeof m.name, "%s", name);
  result = call.send(&m, RHW_KV_AGENT, deadline);
  Received r = {{}, -1};
  if (result == RH_OK) result = call.wait(&r, deadline);
  if (result != RH_OK) return result;
  if (r.m.h.type != RHW_KV_SOCKET) {
    if (r.fd >= 0) close(r.fd);
    return fail(RH_ERR_PROTOCOL, "kv_agent_create: agent %s: message type %d in place of KVSocket", name, r.m.h.type);
  }
  *socket = r.fd;
  return RH_OK;
}

rh_result create(rh_session* handle, const char* name, uint32_t timeout, rh_kv_agent** out) {
  const int64_t deadline = host::nowNs() + int64_t{timeout} * 1000000;
  int socket = -1;
  {
    HandleTable<Session, kMaxSessions>::Shared session(sessions(), handle);
    if (session.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "kv_agent_create: not a live session: was it closed?");
    const rh_result result = askDaemon(session.get(), name, deadline, &socket);
    if (result != RH_OK) return result;
  }
  auto* agent = new KvAgent(socket);
  if (agent == nullptr) {
    close(socket);
    return fail(RH_ERR_OUT_OF_MEMORY, "kv_agent_create: agent %s: no memory", name);
  }
  const rh_result result = agent->open(name, timeout, deadline);
  if (result == RH_OK) *out = static_cast<rh_kv_agent*>(kvAgents().insert(agent));
  if (*out != nullptr) return RH_OK;
  delete agent;
  if (result != RH_OK) return result;
  return fail(RH_ERR_LIMIT, "kv_agent_create: agent %s: this process has %d agents, the most", name, kMaxAgents);
}

}  // namespace

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_kv_agent_create(rh_session* session, const rh_kv_agent_config* config, rh_kv_agent** agent) {
  if (agent == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_agent_create: agent is NULL");
  *agent = nullptr;
  if (config == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_agent_create: config is NULL");
  rh_kv_agent_config c;
  rh_result result = readStruct("kv_agent_create", "config", config, &c);
  uint32_t timeout = 0;
  if (result == RH_OK) result = timeoutMs(c.timeout_ms, "kv_agent_create", &timeout);
  if (result != RH_OK) return result;
  const size_t length = c.name == nullptr ? 0 : strnlen(c.name, RHK_NAME);
  if (length == 0 || length >= RHK_NAME) return fail(RH_ERR_INVALID_ARGUMENT, "kv_agent_create: name has %zu bytes: must be 1 to %u", length, RHK_NAME - 1);
  prepareForForks();
  return create(session, c.name, timeout, agent);
}

extern "C" rh_result rh_kv_agent_destroy(rh_kv_agent* handle) {
  KvAgent* agent = kvAgents().remove(handle);
  if (agent == nullptr) return notAnAgent("kv_agent_destroy");
  const rh_result result = agent->end();
  delete agent;
  return result;
}

extern "C" rh_result rh_kv_agent_incarnation(rh_kv_agent* handle, uint64_t* incarnation) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_agent_incarnation");
  if (incarnation == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_agent_incarnation: incarnation is NULL");
  *incarnation = agent.get()->incarnation();
  return RH_OK;
}
