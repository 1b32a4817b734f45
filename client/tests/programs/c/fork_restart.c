/* Rank 1 of 2, whose daemon is replaced (restart_test.go). While there is no daemon it forks a child, which outlives the rank when that is
 * killed: the child must hold nothing by which the rank would count as alive. */
#include <sys/types.h>
#include <unistd.h>

#include "check.h"

static rh_session *session;
static rh_comm *comm;

/* Waits until the test writes to stdin or closes it. */
static void wait_for_word(void) {
  char word;
  if (read(0, &word, 1) < 0) abort();
}

static void say(const char *word) {
  if (write(1, word, strlen(word)) < 0) abort();
}

int main(void) {
  rh_comm_config config = comm_config("forks", 1, 2);
  rh_window *window = NULL;
  pid_t pid;
  session = open_session();
  OK(rh_comm_init(session, &config, &comm));
  say("joined\n");
  wait_for_word(); /* the daemon is gone */
  pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    FAILS(rh_barrier(comm, NULL), RH_ERR_INVALID_HANDLE, "barrier", "");
    say("forked\n");
    wait_for_word(); /* until the test is over */
    _exit(0);
  }
  OK(rh_window_alloc(comm, 4096, NULL, &window));
  OK(rh_barrier(comm, NULL));
  say("allocated\n");
  for (;;) OK(rh_barrier(comm, NULL)); /* until it is killed */
}
