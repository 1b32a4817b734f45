// Plays a scenario from seeds: races SCENARIO FIRST COUNT, and prints a fingerprint of each schedule. Each seed has a process of its own, so that it plays alike alone and after others.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scenario.h"

namespace world {

void want(rh_result got, rh_result wanted, const char* call) {
  if (got != wanted) fail("%s: %s, want %s: %s", call, rh_result_string(got), rh_result_string(wanted), rh_last_error_message());
}

void wantMessage(const char* word) {
  if (strstr(rh_last_error_message(), word) == nullptr) fail("the message \"%s\" lacks \"%s\"", rh_last_error_message(), word);
}

rh_session* connectOrFail() {
  rh_session_config config = RH_SESSION_CONFIG_INIT;
  config.socket_path = "/the/daemon.sock";
  config.timeout_ms = kTimeoutMs;
  for (int i = 0; i < 100; i++) {
    rh_session* session = nullptr;
    const rh_result r = rh_connect(&config, &session);
    if (r == RH_OK) return session;
    if (r != RH_ERR_NO_DAEMON && r != RH_ERR_DAEMON_LOST && r != RH_ERR_LIMIT && r != RH_ERR_VERSION_MISMATCH) want(r, RH_OK, "connect");
    sleepUntil(now() + 100 * kMs);
  }
  fail("connect fails 100 times: %s", rh_last_error_message());
}

rh_comm_config configOf(const char* group, int world, int rank) {
  rh_comm_config c = RH_COMM_CONFIG_INIT;
  c.group = group;
  c.token = "t";
  c.rank = rank;
  c.world_size = world;
  c.timeout_ms = kTimeoutMs;
  c.heap_bytes = kHeapBytes;
  return c;
}

}  // namespace world

namespace {

struct Scenario {
  const char* name;
  void (*run)();
};
const Scenario scenarios[] = {{"reconnect", world::reconnect}, {"breaks", world::breaks}, {"lost", world::lost}, {"handles", world::handles},
                              {"resumes", world::resumes}, {"ends", world::ends}, {"mismatch", world::mismatch}, {"table", world::handleTable},
                              {"buffers", world::buffers}, {"graphs", world::graphs}, {"groups", world::groups}, {"drops", world::drops}};

[[noreturn]] void play(const Scenario& s, uint64_t seed) {
  alarm(120);  // ends a process that neither sleeps nor takes a step
  world::begin(seed);
  world::setInvariant(world::checkLeases);
  s.run();
  world::joinAll();
  world::checkLeasesReleased();
  world::stopDaemon();
  world::end();
  printf("%llu %016llx\n", static_cast<unsigned long long>(seed), static_cast<unsigned long long>(world::fingerprint()));
  fflush(nullptr);
  exit(0);  // for the leak check of a sanitizer
}

}  // namespace

int main(int count, char** arguments) {
  setenv("RAILHEAD_FLIGHT_RECORD", "off", 1);
  if (count != 4) return 2;
  for (const Scenario& s : scenarios) {
    if (strcmp(s.name, arguments[1]) != 0) continue;
    const uint64_t first = strtoull(arguments[2], nullptr, 10), last = first + strtoull(arguments[3], nullptr, 10);
    for (uint64_t seed = first; seed < last; seed++) {
      const pid_t child = fork();
      if (child == 0) play(s, seed);
      int status = 0;
      if (child < 0 || waitpid(child, &status, 0) != child) return 2;
      if (status == 0) continue;
      fprintf(stderr, "%s: seed %llu failed: %s %d\n", s.name, static_cast<unsigned long long>(seed), WIFSIGNALED(status) ? "signal" : "status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      return 1;
    }
    return 0;
  }
  fprintf(stderr, "no scenario %s\n", arguments[1]);
  return 2;
}
