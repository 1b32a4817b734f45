// The rings of an agent: submissions, completions, notifications. kv.h says who writes each word, and in which order.
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "host/futex.h"
#include "kv/agent.h"
#include "session/session.h"

namespace railhead::client {

namespace {

static_assert(sizeof(rh_kv_event) == sizeof(rhk_completion), "an event is a completion");
static_assert(offsetof(rh_kv_event, bytes) == offsetof(rhk_completion, bytes), "an event is a completion");
static_assert(offsetof(rh_kv_event, text) == offsetof(rhk_completion, text), "an event is a completion");

constexpr int64_t kLookNs = 1000 * 1000;             // between two looks at the socket
constexpr int64_t kSpinNs = 20 * 1000;               // of a poll that waits, before it sleeps
constexpr int64_t kRoomNs = int64_t{200} * 1000000;  // for the proxy to take submissions when the ring or the arena is full
constexpr uint64_t kOne = 1;

class Locked {
 public:
  explicit Locked(pthread_mutex_t* mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
  ~Locked() { pthread_mutex_unlock(mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

}  // namespace

rh_result KvAgent::lost(const char* operation) {
  return fail(RH_ERR_DAEMON_LOST, "%s: agent %s: the proxy has ended, and with it this agent: destroy it and make another one", operation, name_);
}

// Whether the proxy has closed the socket. The mutex is held. Everything that the proxy had written before is in the rings.
bool KvAgent::hasEnded() {
  if (ended_) return true;
  const int64_t now = host::nowNs();
  if (now < nextLook_) return false;
  nextLook_ = now + kLookNs;
  pollfd p = {socket_, POLLRDHUP, 0};
  ended_ = ::poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  return ended_;
}

// Whether a submission with so many bytes in the arena fits. The mutex is held.
bool KvAgent::makeRoom(uint64_t bytes) {
  // Acquire: the proxy has read the places before `taken`.
  const uint64_t taken = __atomic_load_n(&segment_->taken, __ATOMIC_ACQUIRE);
  if (taken > submitted_ || submitted_ - taken >= entries_) {
    if (taken > submitted_ || submitted_ - taken > entries_) ended_ = true;  // the proxy has written nonsense
    return false;
  }
  const uint64_t freed = taken == submitted_ ? arenaUsed_ : taken == 0 ? 0 : arenaAfter_[(taken - 1) % entries_];
  const uint64_t left = arenaBytes_ - arenaUsed_ % arenaBytes_;
  const uint64_t need = bytes > left ? left + bytes : bytes;
  return arenaUsed_ - freed + need <= arenaBytes_;
}

rh_result KvAgent::submit(const char* operation, rhk_submission* s, const Part* parts, int count) {
  uint64_t bytes = 0;
  for (int i = 0; i < count; i++) bytes += parts[i].size;
  // Half: a submission that begins near the arena's end also uses up the rest of it.
  if (bytes > arenaBytes_ / 2) {
    return fail(RH_ERR_LIMIT, "%s: agent %s: lists and notification of %llu bytes: at most %llu", operation, name_, static_cast<unsigned long long>(bytes),
                static_cast<unsigned long long>(arenaBytes_ / 2));
  }
  const int64_t until = host::nowNs() + kRoomNs;
  Locked lock(&mutex_);
  while (!ended_ && !makeRoom(bytes)) {
    hasEnded();
    if (host::nowNs() >= until) return fail(RH_ERR_LIMIT, "%s: agent %s: the proxy takes no submissions: it is stopped or overloaded; try again", operation, name_);
    const timespec pause = {0, 20 * 1000};
    nanosleep(&pause, nullptr);
  }
  if (hasEnded()) return lost(operation);
  if (s->op != RHK_CANCEL) {
    if (freeCount_ == 0) {
      return fail(RH_ERR_LIMIT, "%s: agent %s: %u operations are under way, the most: take their events with rh_kv_poll", operation, name_, kMaxOperations);
    }
    const uint32_t place = free_[--freeCount_];
    s->id = ++generation_ << 16 | (place + 1);
    operations_[place] = s->id;
  }
  const uint64_t left = arenaBytes_ - arenaUsed_ % arenaBytes_;
  if (bytes > left) arenaUsed_ += left;
  s->arena_at = arenaUsed_;
  s->arena_bytes = static_cast<uint32_t>(bytes);
  char* to = arena() + arenaUsed_ % arenaBytes_;
  for (int i = 0; i < count; i++) {
    if (parts[i].size > 0) memcpy(to, parts[i].bytes, parts[i].size);
    to += parts[i].size;
  }
  arenaUsed_ += bytes;
  arenaAfter_[submitted_ % entries_] = arenaUsed_;
  submissions()[submitted_ % entries_] = *s;
  submitted_++;
  // Sequentially consistent, before the load of proxy_sleeps: the proxy stores proxy_sleeps and then loads `submitted`, so that one of
  // both sees the other's store. It is also the release that publishes the submission.
  __atomic_store_n(&segment_->submitted, submitted_, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&segment_->proxy_sleeps, __ATOMIC_SEQ_CST) != 0) {
    const ssize_t written = write(proxyBell_, &kOne, sizeof kOne);
    (void)written;  // an eventfd that is full has rung
  }
  return RH_OK;
}

// Reads events. The mutex is held.
uint32_t KvAgent::reap(rh_kv_event* events, uint32_t max) {
  // Acquire: publishes the completions, and the bytes of transfers that are done.
  const uint64_t completed = __atomic_load_n(&segment_->completed, __ATOMIC_ACQUIRE);
  if (completed - reaped_ > entries_) {
    ended_ = true;  // the proxy has written nonsense
    return 0;
  }
  uint32_t count = 0;
  for (; reaped_ != completed && count < max; reaped_++) {
    rh_kv_event* e = &events[count];
    memcpy(e, &completions()[reaped_ % entries_], sizeof *e);
    e->text[sizeof e->text - 1] = '\0';
    if (e->kind == RHK_ENDED) {
      const uint64_t place = (e->id & 0xffff) - 1;
      if (place >= kMaxOperations || operations_[place] != e->id || e->id == 0) continue;  // of no operation under way
      operations_[place] = 0;
      free_[freeCount_++] = static_cast<uint32_t>(place);
    }
    count++;
  }
  // Release: the proxy may write the places before `reaped` again.
  __atomic_store_n(&segment_->reaped, reaped_, __ATOMIC_RELEASE);
  return count;
}

// Ends what is under way, because the proxy has gone. The mutex is held.
uint32_t KvAgent::endAll(rh_kv_event* events, uint32_t max) {
  uint32_t count = 0;
  for (uint32_t place = 0; place < kMaxOperations && count < max; place++) {
    if (operations_[place] == 0) continue;
    rh_kv_event* e = &events[count++];
    *e = {};
    e->id = operations_[place];
    e->kind = RHK_ENDED;
    e->result = RH_ERR_DAEMON_LOST;
    strcpy(e->text, "the proxy has ended: nothing uses the memory of this operation any more");
    operations_[place] = 0;
    free_[freeCount_++] = place;
  }
  return count;
}

// Whether events or notifications wait. The mutex is held.
bool KvAgent::waiting() {
  return __atomic_load_n(&segment_->completed, __ATOMIC_SEQ_CST) != reaped_ || __atomic_load_n(&segment_->inbox_written, __ATOMIC_SEQ_CST) != inboxRead_;
}

rh_result KvAgent::poll(rh_kv_event* events, uint32_t max, int64_t deadlineNs, uint32_t* count) {
  const int64_t spinUntil = deadlineNs == 0 ? 0 : host::nowNs() + kSpinNs;
  for (;;) {
    {
      Locked lock(&mutex_);
      *count = reap(events, max);
      if (*count == 0 && hasEnded()) {
        *count = reap(events, max);  // what it had written before it ended
        if (*count == 0) *count = endAll(events, max);
        if (*count == 0) return lost("kv_poll");
      }
      if (*count > 0 || deadlineNs == 0 || waiting()) return RH_OK;
    }
    const int64_t now = host::nowNs();
    if (now >= deadlineNs) return RH_OK;
    if (now < spinUntil) continue;
    if (arm()) continue;
    const int64_t ms = (deadlineNs - now + 999999) / 1000000;
    pollfd p[2] = {{ownBell_, POLLIN, 0}, {socket_, POLLRDHUP, 0}};
    ::poll(p, 2, ms > 1000000 ? 1000000 : static_cast<int>(ms));
    if ((p[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      Locked lock(&mutex_);
      ended_ = true;
    }
  }
}

// Announces that this process is about to wait for its bell. True: something is there, it must not.
bool KvAgent::arm() {
  uint64_t rings;
  const ssize_t n = read(ownBell_, &rings, sizeof rings);  // takes an earlier ring
  (void)n;
  // Sequentially consistent, before the loads of waiting(): the proxy stores `completed` and then loads client_sleeps.
  __atomic_store_n(&segment_->client_sleeps, 1u, __ATOMIC_SEQ_CST);
  Locked lock(&mutex_);
  return waiting() || hasEnded();
}

rh_result KvAgent::receive(rh_kv_notification* header, void* payload, uint32_t size) {
  Locked lock(&mutex_);
  for (;;) {
    // Acquire: publishes the records before it.
    const uint64_t written = __atomic_load_n(&segment_->inbox_written, __ATOMIC_ACQUIRE);
    if (written == inboxRead_) return hasEnded() && __atomic_load_n(&segment_->inbox_written, __ATOMIC_ACQUIRE) == inboxRead_ ? lost("kv_receive") : RH_OK;
    const uint64_t at = inboxRead_ % inboxBytes_;
    const uint64_t left = inboxBytes_ - at;
    rhk_record r = {};
    memcpy(&r, inbox() + at, left < sizeof r ? left : sizeof r);
    const bool skip = r.payload_bytes == 0xffffffffu;
    const bool good = r.bytes >= 8 && r.bytes % 8 == 0 && r.bytes <= left && r.bytes <= written - inboxRead_ &&
                      (skip || (r.payload_bytes <= RHK_MAX_PAYLOAD && sizeof r + r.payload_bytes <= r.bytes));
    if (!good || written - inboxRead_ > inboxBytes_) {
      ended_ = true;
      return fail(RH_ERR_PROTOCOL, "kv_receive: agent %s: the proxy's inbox is damaged", name_);
    }
    if (!skip) {
      header->bytes = r.payload_bytes;
      header->there = 1;
      if (r.payload_bytes > size) {
        return fail(RH_ERR_LIMIT, "kv_receive: agent %s: a notification of %u bytes for memory of %u: it stays", name_, r.payload_bytes, size);
      }
      header->incarnation = r.incarnation;
      header->sequence = r.sequence;
      memcpy(header->sender, r.sender, sizeof header->sender - 1);
      if (r.payload_bytes > 0) memcpy(payload, inbox() + at + sizeof r, r.payload_bytes);
    }
    inboxRead_ += r.bytes;
    // Release: the proxy may write these bytes again.
    __atomic_store_n(&segment_->inbox_read, inboxRead_, __ATOMIC_RELEASE);
    if (!skip) return RH_OK;
  }
}

}  // namespace railhead::client
