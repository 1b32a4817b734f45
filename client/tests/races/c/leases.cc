// The robust list, as the kernel would walk it if the process died at this step.
#include <linux/futex.h>
#include <stddef.h>

#include "daemon_state.h"

namespace world {

namespace {

constexpr int kMaxNodes = 64;

struct Marked {
  Key words[kMaxNodes];
  int count = 0;
  bool has(Key k) const {
    for (int i = 0; i < count; i++) {
      if (words[i] == k) return true;
    }
    return false;
  }
};

// Collects the words that the kernel would mark (kernel/futex/core.c, exit_robust_list).
void walk(Marked* out) {
  const auto* head = static_cast<const robust_list_head*>(robust.head);
  int nodes = 0;
  for (const robust_list* n = head->list.next; n != &head->list; n = n->next) {
    const void* address = reinterpret_cast<const char*>(n) + head->futex_offset;
    Key key;
    if (!keyOf(address, &key)) fail("the robust list has an entry in memory that is not mapped");
    if (++nodes > kMaxNodes) fail("the robust list has no end");
    const uint32_t word = *static_cast<const uint32_t*>(address);
    if ((word & FUTEX_TID_MASK) == static_cast<uint32_t>(robust.tid)) out->words[out->count++] = key;
  }
}

Key keyOfSession(const SessionSegment& s) { return {s.file, offsetof(rhw_session, lease) + offsetof(rhw_lease, word)}; }

Key keyOfRank(const Group& g, int r) {
  return {g.controlFile, static_cast<uint64_t>(reinterpret_cast<const char*>(&g.line(r)->lease.word) - g.control)};
}

void checkWord(const Marked& marked, const rhw_lease& lease, SeenLease* seen, Key key, const char* what) {
  const uint32_t word = __atomic_load_n(&lease.word, __ATOMIC_ACQUIRE);
  if (word != seen->word) *seen = {word, true};
  const bool held = word != 0 && (word & FUTEX_TID_MASK) == static_cast<uint32_t>(robust.tid);
  if (held && !marked.has(key)) fail("a death now would leave the lease of a %s held for ever: it is not in the robust list", what);
  // The word publishes the id (comm_init.cc).
  if (held && lease.client == 0) fail("the lease of a %s is taken before it has the id of its session", what);
}

}  // namespace

void checkLeases() {
  if (robust.head == nullptr) return;
  Marked marked;
  walk(&marked);
  for (SessionSegment& s : d.sessions) {
    if (s.at == nullptr) continue;
    checkWord(marked, s.at->lease, &s.seen, keyOfSession(s), "session");
  }
  for (Group& g : d.groups) {
    if (g.control == nullptr) continue;
    for (int r = 0; r < g.world; r++) {
      const rhw_lease& lease = g.line(r)->lease;
      checkWord(marked, lease, &g.seen[r], keyOfRank(g, r), "rank");
      const Rank& rank = g.ranks[r];
      const bool leaving = g.left || g.abortWord() != 0 || rank.socket == nullptr || rank.socket->shut || rank.socket->closed;
      if (rank.known && !rank.played && !leaving && lease.word == 0) fail("rank %d is in its group without a lease", r);
    }
  }
}

void noteWake(Key key) {
  for (SessionSegment& s : d.sessions) {
    if (s.at != nullptr && keyOfSession(s) == key) s.seen.changed = false;
  }
  for (Group& g : d.groups) {
    for (int r = 0; g.control != nullptr && r < g.world; r++) {
      if (keyOfRank(g, r) == key) g.seen[r].changed = false;
    }
  }
}

void checkLeasesWoken() {
  for (const SessionSegment& s : d.sessions) {
    if (s.at != nullptr && s.seen.changed) fail("the lease of a session has changed, and its sleepers were not woken");
  }
  for (const Group& g : d.groups) {
    for (int r = 0; g.control != nullptr && r < g.world; r++) {
      if (!g.ranks[r].played && g.seen[r].changed) fail("the lease of rank %d has changed, and its sleepers were not woken", r);
    }
  }
}

void checkLeasesReleased() {
  for (const SessionSegment& s : d.sessions) {
    if (s.at != nullptr && s.at->lease.word != 0) fail("the lease of a session that was closed is held");
  }
  for (const Group& g : d.groups) {
    if (g.control == nullptr) continue;
    for (int r = 0; r < g.world; r++) {
      if (!g.ranks[r].played && g.line(r)->lease.word != 0) fail("the lease of rank %d is held, which has left group %s", r, g.name);
    }
  }
}

}  // namespace world
