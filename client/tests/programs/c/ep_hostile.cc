// One of three ranks overwrites the buffers of all ranks, and the flags in them, with random values while all of them dispatch and
// combine. Calls may fail and results may be wrong. But every call must end, and must access only the memory that the caller gave. That
// memory is exactly as large as the calls need, and a sanitizer checks.
//
// Usage: ep_hostile SECONDS. RAILHEAD_SOCKET names the daemon.
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <random>

#include "check.h"

namespace {

constexpr int32_t kWorld = 3, kHostile = 2;
constexpr uint32_t kTokens = 16, kHidden = 64, kExperts = 7, kTopk = 3;
constexpr size_t kFlagsEnd = 4096 + 64 * kWorld;  // offset in a buffer
constexpr double kSeconds = 0.15;  // duration of a group
constexpr size_t kWindow = 65536;  // bytes of a window directly before the buffer; also the granularity of heaps

struct Member {
  int group;
  int32_t rank;
};

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

rh_ep_config epConfig(int number) {
  rh_ep_config c = RH_EP_CONFIG_INIT;
  c.mode = number % 2 == 0 ? RH_EP_LL : RH_EP_HT;
  c.max_tokens_per_rank = kTokens;
  c.hidden = kHidden;
  c.num_experts = kExperts;
  c.topk = kTopk;
  c.dtype = c.wire_dtype = c.combine_dtype = RH_F32;
  c.on_dead = number % 4 < 3 ? RH_EP_DEAD_DROP : RH_EP_DEAD_FAIL;
  c.on_invalid = number % 8 < 4 ? RH_EP_INVALID_DROP : RH_EP_INVALID_ERROR;
  c.lost_weights = RH_EP_LOST_RENORMALIZE;
  return c;
}

// Memory of exactly that size: a sanitizer reports any access beyond it.
template <class T>
struct Exact {
  explicit Exact(size_t n) : data(static_cast<T*>(malloc(n * sizeof(T)))) { CHECK(data != nullptr || n == 0); }
  ~Exact() { free(data); }
  Exact(const Exact&) = delete;
  Exact& operator=(const Exact&) = delete;
  T* data;
};

bool mayBe(rh_result r) {
  return r == RH_OK || r == RH_ERR_TIMEOUT || r == RH_ERR_RANK_DEAD || r == RH_ERR_ABORTED || r == RH_ERR_LIMIT || r == RH_ERR_MISMATCH;
}

// Receives into memory for exactly as many rows as were counted. rows: of y.
rh_result receive(rh_ep_handle* handle, uint32_t layout, size_t rows, size_t capacity, uint32_t local, float* y) {
  Exact<float> weights(rows), listed(rows * kTopk);
  Exact<int32_t> counts(local), rank(rows), token(rows), experts(rows * kTopk);
  Exact<int64_t> offsets(local + 1);
  rh_ep_dispatch_out o = RH_EP_DISPATCH_OUT_INIT;
  o.layout = layout;
  o.capacity = capacity;
  o.x = y;
  o.counts = counts.data;
  o.offsets = offsets.data;
  o.weights = weights.data;
  o.source_rank = rank.data;
  o.source_token = token.data;
  o.topk_idx = layout == RH_EP_TOKENS ? experts.data : nullptr;
  o.topk_weights = layout == RH_EP_TOKENS ? listed.data : nullptr;
  return rh_ep_dispatch_recv(handle, &o, nullptr);
}

rh_result combine(rh_ep_handle* handle, uint32_t tokens, const float* y) {
  Exact<float> sums(tokens * kHidden);
  rh_ep_combine_args args = RH_EP_COMBINE_ARGS_INIT;
  args.y = y;
  args.y_dtype = args.out_dtype = RH_F32;
  args.out = sums.data;
  rh_ep_report report = RH_EP_REPORT_INIT;
  return rh_ep_combine(handle, &args, &report, nullptr);
}

// False: the rank cannot continue.
bool play(rh_ep* ep, uint32_t local, std::mt19937* random) {
  const auto tokens = static_cast<uint32_t>((*random)() % (kTokens + 1)), layout = static_cast<uint32_t>((*random)() % 3);
  Exact<float> x(tokens * kHidden);
  Exact<int32_t> idx(tokens * kTopk), counts(local);
  for (uint32_t i = 0; i < tokens * kHidden; i++) x.data[i] = 1;
  for (uint32_t i = 0; i < tokens * kTopk; i++) idx.data[i] = static_cast<int32_t>((i + tokens) % kExperts);
  rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
  in.x = x.data;
  in.topk_idx = idx.data;
  in.idx_dtype = RH_I32;
  in.num_tokens = tokens;
  in.hidden = kHidden;
  rh_ep_handle* handle = nullptr;
  uint64_t copies = 0;
  rh_result result = rh_ep_dispatch_send(ep, &in, &handle, nullptr);
  if (result == RH_OK) result = rh_ep_dispatch_counts(handle, counts.data, &copies, nullptr);
  CHECK(mayBe(result));
  if (result != RH_OK) return false;
  size_t sum = 0, most = 1;
  for (uint32_t e = 0; e < local; e++) {
    const auto n = static_cast<size_t>(counts.data[e]);
    sum += n;
    most = n > most ? n : most;
  }
  const size_t capacity = layout == RH_EP_PADDED ? most : layout == RH_EP_FLAT ? sum : static_cast<size_t>(copies);
  const size_t rows = layout == RH_EP_PADDED ? capacity * local : capacity;
  Exact<float> y(rows * kHidden + 1);  // one more, so that the address is never NULL
  for (size_t i = 0; i < rows * kHidden; i++) y.data[i] = 0;
  result = receive(handle, layout, rows, capacity, local, y.data);
  if (result == RH_OK) result = combine(handle, tokens, y.data);
  CHECK(mayBe(result));
  return result == RH_OK;
}

struct Scribbler {
  rh_comm* comm;
  uint32_t seed;
  char* buffers[kWorld];
  size_t bytes;
};

// Overwrites words, mostly counts and headers, which follow the flags. State and flags are overwritten seldom, since ranks then soon wait
// for something that never arrives. Half of the values are small, so that some are plausible. Ends with an abort of the group.
void* scribble(void* argument) {
  const auto* s = static_cast<const Scribbler*>(argument);
  std::mt19937 random(s->seed);
  for (const double end = now() + kSeconds; now() < end;) {
    const size_t from = random() % 65536 != 0 ? kFlagsEnd : 0, to = random() % 8 != 0 ? kFlagsEnd + 2048 : s->bytes;
    const size_t word = (from + random() % (to - from)) / 4;
    const auto value = static_cast<uint32_t>(random() % 2 == 0 ? random() : random() % 40);
    __atomic_store_n(reinterpret_cast<uint32_t*>(s->buffers[random() % kWorld]) + word, value, __ATOMIC_RELAXED);
    if (random() % 64 == 0) sched_yield();
  }
  OK(rh_comm_abort(s->comm));
  return nullptr;
}

void* member(void* argument) {
  const auto* me = static_cast<const Member*>(argument);
  char name[32];
  snprintf(name, sizeof name, "hostile %d", me->group);
  rh_session* session = open_session();
  rh_comm_config config = comm_config(name, me->rank, kWorld);
  config.heap_bytes = 8 << 20;
  rh_comm* comm = nullptr;
  OK(rh_comm_init(session, &config, &comm));
  rh_window* window = nullptr;
  OK(rh_window_alloc(comm, kWindow, nullptr, &window));
  const rh_ep_config c = epConfig(me->group);
  rh_ep* ep = nullptr;
  OK(rh_ep_create(comm, &c, &ep));
  rh_ep_info info = RH_EP_INFO_INIT;
  OK(rh_ep_get_info(ep, &info));
  std::mt19937 random(static_cast<uint32_t>(me->group * kWorld + me->rank));
  CHECK(play(ep, info.local_experts, &random));
  OK(rh_barrier(comm, nullptr));

  Scribbler s = {comm, static_cast<uint32_t>(me->group), {}, info.buffer_bytes};
  for (int32_t r = 0; r < kWorld; r++) {
    void* p = nullptr;
    OK(rh_window_pointer(window, r, &p));
    s.buffers[r] = static_cast<char*>(p) + kWindow;
  }
  CHECK(*reinterpret_cast<uint32_t*>(s.buffers[me->rank]) == 1);  // this is the buffer: it has counted a dispatch
  OK(rh_barrier(comm, nullptr));
  pthread_t thread;
  if (me->rank == kHostile) CHECK(pthread_create(&thread, nullptr, scribble, &s) == 0);
  while (play(ep, info.local_experts, &random)) {
  }
  if (me->rank == kHostile) CHECK(pthread_join(thread, nullptr) == 0);
  CHECK(rh_ep_destroy(ep) != RH_OK);  // the group is broken
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 2);
  const double end = now() + atof(arguments[1]);
  int groups = 0;
  for (; groups < 8 || now() < end; groups++) {
    pthread_t threads[kWorld];
    Member members[kWorld];
    for (int32_t r = 0; r < kWorld; r++) {
      members[r] = {groups, r};
      CHECK(pthread_create(&threads[r], nullptr, member, &members[r]) == 0);
    }
    for (pthread_t t : threads) CHECK(pthread_join(t, nullptr) == 0);
  }
  printf("%d groups\n", groups);
  return 0;
}
