// A scenario is what the threads of the test do in a seed, and what must be true of it.
#ifndef RAILHEAD_RACES_SCENARIO_H_
#define RAILHEAD_RACES_SCENARIO_H_

#include <string.h>

#include "daemon.h"
#include "railhead.h"
#include "world.h"

namespace world {

void reconnect();
void breaks();
void lost();
void handles();
void resumes();
void mismatch();
void ends();
void handleTable();
void buffers();
void graphs();
void groups();
void drops();

constexpr uint32_t kTimeoutMs = 3000;
constexpr int64_t kTimeout = kTimeoutMs * kMs;
// Beyond its deadline a call waits for the daemon's own error (kAnswerGraceNs) and for threads that are slow.
constexpr int64_t kGrace = 5 * kSecond, kSlow = 1 * kSecond;

// Fails unless the result is the wanted one.
void want(rh_result got, rh_result wanted, const char* call);
void wantMessage(const char* word);  // in the last error's message

rh_session* connectOrFail();
rh_comm_config configOf(const char* group, int world, int rank);

}  // namespace world

#endif  // RAILHEAD_RACES_SCENARIO_H_
