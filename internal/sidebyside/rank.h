/* rank.h - common code of the ranks of a comparison, for every measurement and library. Define _GNU_SOURCE first.
 *
 * A rank binds itself to a CPU, joins its group, connects and sends "RANK RANKS\n". Then it answers each line that it reads, until
 * the connection ends. Between commands it sleeps in read, so that it does not disturb other sides. */
#ifndef SIDEBYSIDE_RANK_H_
#define SIDEBYSIDE_RANK_H_

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
  perror(what);
  exit(1);
}

/* CLOCK_MONOTONIC in ns, the same for all processes. */
static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Binds this process to CPU number `rank` of the list cpus ("0,1"; "-": does not bind). variables are the names of environment
 * variables that may have the rank, ended by NULL. */
static void bind_to_cpu(const char *cpus, const char *const *variables) {
  if (strcmp(cpus, "-") == 0) return;
  const char *text = NULL;
  for (int i = 0; text == NULL && variables[i] != NULL; i++) text = getenv(variables[i]);
  if (text == NULL) {
    fprintf(stderr, "no environment variable has the rank: was this process started by its launcher?\n");
    exit(1);
  }
  for (int rank = atoi(text); rank > 0 && cpus != NULL; rank--) {
    cpus = strchr(cpus, ',');
    if (cpus != NULL) cpus++;
  }
  if (cpus == NULL) {
    fprintf(stderr, "rank %s: the list has no CPU for it\n", text);
    exit(1);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)atoi(cpus), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("bind to a CPU");
}

/* Connects to the unix socket at path and sends this rank's number. */
static void connect_to(const char *path, int rank, int ranks, FILE **commands, FILE **answers) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    fprintf(stderr, "%s: too long for the path of a socket\n", path);
    exit(1);
  }
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) fail(path);
  *commands = fdopen(fd, "r");
  *answers = fdopen(dup(fd), "w");
  if (*commands == NULL || *answers == NULL) fail("open the connection");
  fprintf(*answers, "%d %d\n", rank, ranks);
  if (fflush(*answers) != 0) fail("answer");
}

#endif
