// How a session survives the death of its daemon. All of it runs on the control thread and never blocks: an attempt that has to wait
// for Welcome continues when poll(2) reports the socket ready.
//
//   up --(the connection ends)--> down --(connected, Hello sent)--> greeting --(Welcome)--> greeted --(no sender)--> up
//                                  ^------(refused, no daemon, timeout)----------'
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "host/futex.h"
#include "session/session.h"
#include "session/socket.h"

namespace railhead::client {

namespace {

constexpr int64_t kMs = 1000 * 1000;
// Pauses between attempts, which double from the first to the longest. A daemon that refuses this client (another version, no room)
// is unlikely to accept it soon.
constexpr int64_t kFirstPauseNs = 50 * kMs;
constexpr int64_t kMostPauseNs = 200 * kMs;
constexpr int64_t kRefusedPauseNs = 2000 * kMs;
constexpr int64_t kWelcomeNs = 5000 * kMs;  // for a daemon to answer Hello; many clients may reconnect at once
constexpr int64_t kSenderPauseNs = 5 * kMs;  // for a caller to leave sendmsg, for room in the socket, or for descriptors on their way to arrive

// Request numbers of the control thread; calls never use them.
constexpr uint64_t kAnnounceBit = uint64_t{1} << 63;

}  // namespace

int Session::descriptor() const {
  return link_ == Link::kUp ? fd_ : link_ == Link::kGreeting ? freshFd_ : -1;
}

void Session::readable(int64_t now) {
  if (link_ == Link::kUp && !receive()) goDown(now);
  if (link_ == Link::kGreeting) greet(now);
}

int64_t Session::tick(int64_t now) {
  if (link_ == Link::kDown && now >= next_) attempt(now);
  if (link_ == Link::kGreeting && now >= next_) {
    fail(RH_ERR_TIMEOUT, "the daemon at %s did not answer Hello in time", path_);
    failAttempt(now, kMostPauseNs);
  }
  if (link_ == Link::kGreeted && !install()) next_ = now + kSenderPauseNs;
  return link_ == Link::kUp || link_ == Link::kClosed ? INT64_MAX : next_;
}

// False when the connection has ended.
bool Session::receive() {
  for (;;) {
    Received r;
    const char* why = nullptr;
    const Got got = receiveMessage(fd_, &r, &why);
    if (got == Got::kNothing) return true;
    if (got == Got::kMessage) {
      if ((r.m.h.request & kAnnounceBit) != 0) {
        takeAnnounced(r);
        continue;
      }
      if (deliver(r)) continue;
      why = "more answers than the request can have";
    }
    lose(why, got != Got::kEnd);  // do not reconnect to a daemon that violates the protocol
    return false;
  }
}

void Session::goDown(int64_t now) {
  pthread_mutex_lock(&mutex_);
  link_ = closed_ ? Link::kClosed : Link::kDown;
  pthread_mutex_unlock(&mutex_);
  pauseNs_ = kFirstPauseNs;
  // Jitter: all ranks of a node lose their daemon at the same moment.
  next_ = now + kFirstPauseNs * (getpid() % 16) / 16;
}

void Session::attempt(int64_t now) {
  rh_result result = openSocket(path_, 0, &freshFd_);
  const bool there = result == RH_OK;
  if (there) result = sendHello(freshFd_, now);
  if (result != RH_OK) {
    failAttempt(now, kMostPauseNs);
    return;
  }
  link_ = Link::kGreeting;
  next_ = now + kWelcomeNs;
}

// This thread's error message says why.
void Session::failAttempt(int64_t now, int64_t mostNs) {
  if (freshFd_ >= 0) close(freshFd_);
  freshFd_ = -1;
  next_ = now + pauseNs_;
  pauseNs_ = pauseNs_ * 2 < mostNs ? pauseNs_ * 2 : mostNs;
  pthread_mutex_lock(&mutex_);
  link_ = closed_ ? Link::kClosed : Link::kDown;
  snprintf(attemptWhy_, sizeof attemptWhy_, "%s", rh_last_error_message());
  pthread_mutex_unlock(&mutex_);
}

void Session::greet(int64_t now) {
  Received r;
  const char* why = nullptr;
  const Got got = receiveMessage(freshFd_, &r, &why);
  if (got == Got::kNothing) return;
  if (got == Got::kMessage && takeWelcome(r, &freshVersion_) == RH_OK) {
    link_ = Link::kGreeted;
    next_ = now;
    return;
  }
  if (got != Got::kMessage) fail(RH_ERR_DAEMON_LOST, "no Welcome from the daemon at %s: %s", path_, why);
  failAttempt(now, kRefusedPauseNs);
}

// Replaces the old connection by the new one. False while a caller may still use the old one, or while the kernel passes on no more descriptors
// of this user. The lease is the first message, before a caller can send. If the daemon has gone, receive() is about to see it.
bool Session::install() {
  pthread_mutex_lock(&mutex_);
  const bool done = closed_ || (senders_ == 0 && lease_.announce(freshFd_, freshVersion_, 0) != ETIMEDOUT);
  if (closed_) {
    link_ = Link::kClosed;
  } else if (done) {
    close(fd_);
    fd_ = freshFd_;
    freshFd_ = -1;
    version_ = freshVersion_;
    connection_++;
    lost_ = false;
    link_ = Link::kUp;
    pthread_cond_broadcast(&changed_);
  }
  pthread_mutex_unlock(&mutex_);
  return done;
}

bool Session::tend(Member* member) {
  if (link_ != Link::kUp) return false;
  if (member->daemon.connection == connection_) return member->daemon.refused == RH_OK;
  announce(member);
  return false;
}

// Continues to announce a member, as far as the socket has room. After the first message the connection must stay open: the daemon
// takes its end for the death of the member.
void Session::announce(Member* member) {
  Announcement& a = member->announcement;
  if (a.connection != connection_) a = {connection_, 0, 0, false};
  if (a.request == 0) {
    const uint64_t request = kAnnounceBit | ++announced_;
    if (member->kind->announce(member, {fd_, version_, request})) a.request = request;
    return;
  }
  if (!a.taken || !member->kind->complete(member, a.group, {fd_, version_, a.request})) return;
  pthread_mutex_lock(&mutex_);
  member->daemon.connection = connection_;
  member->daemon.group = a.group;
  member->daemon.refused = RH_OK;
  pthread_cond_broadcast(&changed_);
  pthread_mutex_unlock(&mutex_);
}

// The answer to an announcement. A refusal is final for this daemon; the member continues without a daemon.
void Session::takeAnnounced(const Received& r) {
  if (r.fd >= 0) close(r.fd);
  forEachMember([&](Member* member) {
    Announcement& a = member->announcement;
    if (member->session != this || a.request != r.m.h.request || a.connection != connection_ || a.taken) return;
    if (r.m.h.type == RHW_REANNOUNCED) {
      a.group = r.m.reannounced.group;
      a.taken = true;
      announce(member);
      return;
    }
    DaemonView& view = member->daemon;
    pthread_mutex_lock(&mutex_);
    view.connection = connection_;
    view.refused = RH_ERR_PROTOCOL;
    snprintf(view.why, sizeof view.why, "the daemon answers Reannounce with message type %d", r.m.h.type);
    if (r.m.h.type == RHW_ERROR) {
      view.refused = static_cast<rh_result>(r.m.error.code);
      memcpy(view.why, r.m.error.text, sizeof view.why);
    }
    pthread_cond_broadcast(&changed_);
    pthread_mutex_unlock(&mutex_);
  });
}

}  // namespace railhead::client
