// An agent of KV transfer, on the side of the engine's process. internal/kvwire/kv.h has the layouts and the memory order of each word.
#ifndef RAILHEAD_CLIENT_KV_AGENT_H_
#define RAILHEAD_CLIENT_KV_AGENT_H_

#include <pthread.h>
#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "kv.h"
#include "railhead.h"

namespace railhead::client {

constexpr int kMaxAgents = 256;           // of a process
constexpr uint32_t kMaxOperations = RH_KV_MAX_OPERATIONS;

// Memory of rh_kv_alloc.
struct KvMemory : Malloced {
  void* memory;
  uint64_t bytes;
  uint32_t region;
  KvMemory* next;
};

class KvAgent : public Malloced {
 public:
  // Takes over the socket.
  explicit KvAgent(int socket);
  ~KvAgent();
  KvAgent(const KvAgent&) = delete;
  KvAgent& operator=(const KvAgent&) = delete;

  // Receives Hello, and maps the segment.
  rh_result open(const char* name, uint32_t timeoutMs, int64_t deadlineNs);
  // Ends the agent at the proxy, and waits until nothing uses its memory.
  rh_result end();
  // For the child of a fork.
  void dropInChild();

  // Sends a request with a list behind it, and receives the Result and up to answerBytes of its list. fd is -1 for none.
  rh_result ask(const char* operation, void* message, uint32_t type, size_t size, const void* list, size_t listBytes, int fd, rhk_result* answer,
                void* answerList = nullptr, size_t answerBytes = 0);
  template <class M>
  rh_result ask(const char* operation, M* message, uint32_t type, const void* list, size_t listBytes, int fd, rhk_result* answer) {
    return ask(operation, message, type, sizeof(M), list, listBytes, fd, answer);
  }

  // A piece of a submission's bytes in the arena.
  struct Part {
    const void* bytes;
    size_t size;
  };
  // Appends a submission. s->id: of the operation that a CANCEL is about, else the new operation's, which is set here.
  rh_result submit(const char* operation, rhk_submission* s, const Part* parts, int count);
  // Reads events; waits until deadlineNs for the first one.
  rh_result poll(rh_kv_event* events, uint32_t max, int64_t deadlineNs, uint32_t* count);
  bool arm();
  rh_result receive(rh_kv_notification* header, void* payload, uint32_t size);

  void keep(KvMemory* memory);
  KvMemory* take(uint32_t region);  // nullptr: it is not of rh_kv_alloc
  void noteCache(uint32_t cache, uint32_t blockTokens);
  uint32_t blockTokens(uint32_t cache);  // 0: not known

  int bell() const { return ownBell_; }
  uint64_t incarnation() const { return segment_->incarnation; }

 private:
  rh_result receiveHello(int64_t deadlineNs, int fds[RHK_DESCRIPTORS]);
  rh_result mapSegment(int fd, uint64_t bytes);
  rh_result lost(const char* operation);
  rh_result nonsense(const char* operation, const char* what);
  bool hasEnded();
  uint32_t reap(rh_kv_event* events, uint32_t max);
  uint32_t endAll(rh_kv_event* events, uint32_t max);
  bool waiting();
  bool makeRoom(uint64_t bytes);
  rh_result awaitAnswer(const char* operation, uint64_t request, rhk_result* answer, void* list, size_t listBytes, int64_t deadlineNs);
  rhk_submission* submissions() { return reinterpret_cast<rhk_submission*>(base_ + RHK_RINGS); }
  rhk_completion* completions() { return reinterpret_cast<rhk_completion*>(submissions() + entries_); }
  char* arena() { return reinterpret_cast<char*>(completions() + entries_); }
  char* inbox() { return arena() + arenaBytes_; }

  int socket_;
  int proxyBell_ = -1;  // rung by this process
  int ownBell_ = -1;    // rung by the proxy
  char name_[RHK_NAME] = {0};
  int64_t timeoutNs_ = 0;
  char* base_ = nullptr;  // of the segment
  uint64_t bytes_ = 0;
  rhk_segment* segment_ = nullptr;
  uint32_t entries_ = 0;  // of each ring; this and the sizes are read once
  uint64_t arenaBytes_ = 0;
  uint64_t inboxBytes_ = 0;

  pthread_mutex_t asking_ = PTHREAD_MUTEX_INITIALIZER;  // one request at a time
  uint64_t request_ = 0;

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // guards everything below
  bool ended_ = false;         // the proxy has closed the socket, or has written nonsense
  int64_t nextLook_ = 0;       // when the socket is looked at again
  uint64_t submitted_ = 0;
  uint64_t reaped_ = 0;
  uint64_t inboxRead_ = 0;
  uint64_t arenaUsed_ = 0;     // bytes of the arena used so far, gaps at its end included
  uint64_t* arenaAfter_ = nullptr;  // by place in the ring: arenaUsed_ after that submission
  uint64_t operations_[kMaxOperations] = {0};  // ids under way, 0 = free
  uint32_t free_[kMaxOperations];              // a stack of free places of operations_
  uint32_t freeCount_ = kMaxOperations;
  uint64_t generation_ = 0;
  KvMemory* memories_ = nullptr;
  uint32_t tokens_[RHK_MAX_CACHES + 1] = {0};  // block_tokens of caches, by number
};

HandleTable<KvAgent, kMaxAgents>& kvAgents();

using KvRef = HandleTable<KvAgent, kMaxAgents>::Shared;

// Fails with INVALID_HANDLE.
rh_result notAnAgent(const char* operation);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_KV_AGENT_H_
