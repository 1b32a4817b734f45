/* rank.h - what the ranks of a comparison have in common, whatever they measure and with which library. Define _GNU_SOURCE first.
 *
 * A rank binds itself to a CPU, joins its group, connects and says "RANK RANKS\n"; then it answers each line that it reads, until
 * there are no more. Between commands it sleeps in read, so that it disturbs no other side. */
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

/* CLOCK_MONOTONIC, which all processes share, in ns. */
static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Binds this process to the rank'th of cpus ("0,1", or "-" to stay unbound). variables are those of the environment that may
 * hold the rank, ended by NULL. */
static void bind_to_cpu(const char *cpus, const char *const *variables) {
  if (strcmp(cpus, "-") == 0) return;
  const char *text = NULL;
  for (int i = 0; text == NULL && variables[i] != NULL; i++) text = getenv(variables[i]);
  if (text == NULL) {
    fprintf(stderr, "no variable says which rank this is: was it started by its launcher?\n");
    exit(1);
  }
  for (int rank = atoi(text); rank > 0 && cpus != NULL; rank--) {
    cpus = strchr(cpus, ',');
    if (cpus != NULL) cpus++;
  }
  if (cpus == NULL) {
    fprintf(stderr, "rank %s: no CPU for it in the list\n", text);
    exit(1);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)atoi(cpus), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("bind to a CPU");
}

/* Connects to the unix socket at path and says who this is. */
static void connect_to(const char *path, int rank, int ranks, FILE **commands, FILE **answers) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    fprintf(stderr, "%s: longer than a socket's path may be\n", path);
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
