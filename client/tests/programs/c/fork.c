/* A rank forks. Its handles are not valid in the child, the child may connect by itself, and the parent continues to work. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static rh_session *session;
static rh_comm *comm;
static rh_window *window;
static rh_ep *ep;
static rh_ep_handle *dispatch;

static void child(void) {
  int32_t rank = 0;
  void *pointer = NULL;
  rh_comm_config config = comm_config("child", 0, 1);
  rh_comm *mine = NULL;
  rh_session *anew = NULL;
  alarm(60); /* ends a call that waits for a thread which the child does not have */
  FAILS(rh_barrier(comm, NULL), RH_ERR_INVALID_HANDLE, "barrier", "");
  FAILS(rh_comm_rank(comm, &rank), RH_ERR_INVALID_HANDLE, "comm_rank", "");
  FAILS(rh_window_pointer(window, 0, &pointer), RH_ERR_INVALID_HANDLE, "window_pointer", "");
  FAILS(rh_ep_dispatch_counts(dispatch, NULL, NULL, NULL), RH_ERR_INVALID_HANDLE, "ep_dispatch_counts", "");
  FAILS(rh_ep_destroy(ep), RH_ERR_INVALID_HANDLE, "ep_destroy", "");
  FAILS(rh_comm_finalize(comm), RH_ERR_INVALID_HANDLE, "finalize", "");
  FAILS(rh_comm_init(session, &config, &mine), RH_ERR_INVALID_HANDLE, "comm_init", "");
  FAILS(rh_close(session), RH_ERR_INVALID_HANDLE, "close", "");
  anew = open_session();
  OK(rh_comm_init(anew, &config, &mine));
  OK(rh_barrier(mine, NULL));
  OK(rh_comm_finalize(mine));
  OK(rh_close(anew));
}

/* Keeps the library busy in another thread while the main thread forks. */
static void *busy(void *over) {
  while (!__atomic_load_n((const int *)over, __ATOMIC_ACQUIRE)) {
    rh_session *s = open_session();
    rh_comm_config config = comm_config("beside", 0, 1);
    rh_comm *c = NULL;
    rh_window *w = NULL;
    OK(rh_comm_init(s, &config, &c));
    OK(rh_window_alloc(c, 1, NULL, &w));
    OK(rh_comm_finalize(c));
    OK(rh_close(s));
  }
  return NULL;
}

static pid_t fork_child(void) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    child();
    _exit(0);
  }
  return pid;
}

static void succeeded(pid_t pid) {
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int descriptors(void) {
  int n = 0;
  DIR *all = opendir("/proc/self/fd");
  CHECK(all != NULL);
  while (readdir(all) != NULL) n++;
  closedir(all);
  return n;
}

/* Of what ranks share. */
static int mappings(void) { return mappings_of("/memfd:railhead"); }

/* What a child kept would keep its parent's connection open and its memory alive. No other thread is in the library. */
static void child_holds_nothing(int before) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    CHECK(descriptors() == before);
    CHECK(mappings() == 0);
    _exit(0);
  }
  succeeded(pid);
}

/* A dispatch of one token to two experts, which is in flight while the children run. */
static const float token[4] = {1, 2, 3, 4};
static const int32_t experts[2] = {0, 1};

static void send_token(void) {
  rh_ep_config config = RH_EP_CONFIG_INIT;
  rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
  config.max_tokens_per_rank = 1;
  config.hidden = 4;
  config.num_experts = config.topk = 2;
  config.dtype = config.wire_dtype = config.combine_dtype = RH_F32;
  OK(rh_ep_create(comm, &config, &ep));
  in.x = token;
  in.topk_idx = experts;
  in.idx_dtype = RH_I32;
  in.num_tokens = 1;
  in.hidden = 4;
  OK(rh_ep_dispatch_send(ep, &in, &dispatch, NULL));
}

static void combine_token(void) {
  float rows[2 * 4], sum[4];
  rh_ep_dispatch_out out = RH_EP_DISPATCH_OUT_INIT;
  rh_ep_combine_args args = RH_EP_COMBINE_ARGS_INIT;
  out.capacity = 1;
  out.x = rows;
  OK(rh_ep_dispatch_recv(dispatch, &out, NULL));
  args.y = rows;
  args.out = sum;
  args.y_dtype = args.out_dtype = RH_F32;
  OK(rh_ep_combine(dispatch, &args, NULL, NULL));
  for (int i = 0; i < 4; i++) CHECK(sum[i] == 2 * token[i]);
  OK(rh_ep_destroy(ep));
}

int main(void) {
  int over = 0;
  pthread_t thread;
  const int before = descriptors();
  rh_comm_config config = comm_config("parent", 0, 1);
  session = open_session();
  OK(rh_comm_init(session, &config, &comm));
  OK(rh_window_alloc(comm, 1000, NULL, &window));
  send_token();
  CHECK(descriptors() > before && mappings() > 0);
  child_holds_nothing(before);
  CHECK(pthread_create(&thread, NULL, busy, &over) == 0);
  for (int i = 0; i < 30; i++) {
    succeeded(fork_child());
    OK(rh_barrier(comm, NULL));
  }
  OK(rh_group_start()); /* the child is in no group of calls: its calls run at once */
  OK(rh_barrier(comm, NULL));
  succeeded(fork_child());
  OK(rh_group_end());
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  CHECK(pthread_join(thread, NULL) == 0);
  combine_token();
  OK(rh_window_free(window));
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  return 0;
}
