/* What happens when the machine refuses something: no descriptors, no address space, no access. The argument names the mode. Each mode
 * prints the result's name and the message. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

static void limit(int resource, rlim_t value) {
  struct rlimit l;
  CHECK(getrlimit(resource, &l) == 0);
  l.rlim_cur = value;
  CHECK(setrlimit(resource, &l) == 0);
}

/* The number of open descriptors. */
static int open_descriptors(void) {
  int n = 0;
  for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) != -1;
  return n;
}

/* Allows one more descriptor at a time, so that each open() of rh_connect fails once. */
static void no_descriptors(void) {
  int before;
  rlim_t room = 0;
  int failures = 0;
  for (int fd = 3; fd < 1024; fd++) close(fd); /* inherited descriptors leave gaps */
  before = open_descriptors();
  for (;; room++) {
    rh_session *session = NULL;
    rh_result r;
    limit(RLIMIT_NOFILE, (rlim_t)before + room);
    r = rh_connect(NULL, &session);
    if (r == RH_OK) {
      OK(rh_close(session));
      break;
    }
    failures++;
    CHECK(room < 10);
    CHECK(session == NULL);
    limit(RLIMIT_NOFILE, 1024);
    check_result(r, RH_ERR_SYSTEM, "connect", "Too many open files", __FILE__, __LINE__, "rh_connect");
    CHECK(open_descriptors() == before);
  }
  limit(RLIMIT_NOFILE, 1024);
  CHECK(open_descriptors() == before);
  CHECK(failures >= 2); /* the socket and the pidfd; the control thread's eventfd comes after the pidfd is closed */
  printf("%s %s\n", rh_result_string(RH_ERR_SYSTEM), rh_last_error_message());
}

static void no_address_space(void) {
  rh_session *session = open_session();
  rh_comm_config config = comm_config("address space", 0, 1);
  rh_comm *comm = NULL;
  const int before = open_descriptors();
  rh_result r;
  config.heap_bytes = (uint64_t)1 << 36;
  limit(RLIMIT_AS, (rlim_t)1 << 34);
  r = rh_comm_init(session, &config, &comm);
  printf("%s %s\n", rh_result_string(r), rh_last_error_message());
  CHECK(open_descriptors() == before);
  /* The session is still usable. */
  config.heap_bytes = 1 << 20;
  OK(rh_comm_init(session, &config, &comm));
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
}

/* The daemon sends the group's descriptors while the process may open none. */
static void no_descriptors_in_init(void) {
  rh_session *session = open_session();
  const rh_comm_config config = comm_config("descriptors", 0, 1);
  rh_comm *comm = NULL;
  rh_result r;
  for (int fd = 0; fd < 1024; fd++) {
    if (fcntl(fd, F_GETFD) == -1) CHECK(dup2(2, fd) == fd); /* no gaps */
  }
  limit(RLIMIT_NOFILE, 1024);
  r = rh_comm_init(session, &config, &comm);
  printf("%s %s\n", rh_result_string(r), rh_last_error_message());
  OK(rh_close(session));
}

static void connect_only(void) {
  rh_session *session = NULL;
  const rh_result r = rh_connect(NULL, &session);
  printf("%s %s\n", rh_result_string(r), rh_last_error_message());
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  if (strcmp(argv[1], "descriptors") == 0) {
    no_descriptors();
  } else if (strcmp(argv[1], "address-space") == 0) {
    no_address_space();
  } else if (strcmp(argv[1], "descriptors-in-init") == 0) {
    no_descriptors_in_init();
  } else {
    CHECK(strcmp(argv[1], "connect") == 0);
    connect_only();
  }
  return 0;
}
