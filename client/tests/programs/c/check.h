/* Checks that print where they failed and end the process, and set-up that the test programs share. C11 and C++17. */
#ifndef RAILHEAD_CTEST_CHECK_H_
#define RAILHEAD_CTEST_CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "railhead.h"

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                      \
    }                                                                               \
  } while (0)

/* Mappings of this process whose line in /proc/self/maps has the word. */
static inline int mappings_of(const char *word) {
  char line[512];
  int n = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  while (fgets(line, sizeof line, maps) != NULL) n += strstr(line, word) != NULL;
  fclose(maps);
  return n;
}

#define OK(call) check_result((call), RH_OK, "", "", __FILE__, __LINE__, #call)

/* The call must fail with the result and a message that contains both words ("" is in every message). */
#define FAILS(call, result, word1, word2) check_result((call), (result), (word1), (word2), __FILE__, __LINE__, #call)

static inline void check_result(rh_result got, rh_result want, const char *word1, const char *word2, const char *file, int line,
                                const char *call) {
  const char *message = rh_last_error_message();
  if (got == want && strstr(message, word1) != NULL && strstr(message, word2) != NULL) return;
  fprintf(stderr, "%s:%d: %s gave %s, want %s", file, line, call, rh_result_string(got), rh_result_string(want));
  if (want != RH_OK) fprintf(stderr, " with \"%s\" and \"%s\"", word1, word2);
  fprintf(stderr, ": %s\n", message);
  abort();
}

/* RAILHEAD_SOCKET names the daemon. */
static inline rh_session *open_session(void) {
  rh_session_config config = RH_SESSION_CONFIG_INIT;
  rh_session *session = NULL;
  config.timeout_ms = 60000;
  OK(rh_connect(&config, &session));
  return session;
}

static inline rh_comm_config comm_config(const char *group, int32_t rank, int32_t world) {
  rh_comm_config config = RH_COMM_CONFIG_INIT;
  config.group = group;
  config.rank = rank;
  config.world_size = world;
  config.timeout_ms = 60000;
  config.heap_bytes = 1 << 20;
  return config;
}

#endif /* RAILHEAD_CTEST_CHECK_H_ */
