// Settings: taken from the config of a call, else from the environment, else a default.
#ifndef RAILHEAD_CLIENT_BASE_SETTINGS_H_
#define RAILHEAD_CLIENT_BASE_SETTINGS_H_

#include <stddef.h>

#include "railhead.h"
#include "wire.h"

namespace railhead::client {

// The longest path that fits sockaddr_un with its NUL.
constexpr size_t kMaxSocketPath = 107;

// The value of an environment variable; nullptr where it is unset or empty.
const char* environment(const char* variable);
// Whether all of text is a decimal number in low..high.
bool parseInt(const char* text, long low, long high, long* out);

rh_result socketPath(const char* configured, char out[kMaxSocketPath + 1]);
rh_result timeoutMs(uint32_t configured, const char* operation, uint32_t* out);
// $RAILHEAD_ALGO; the daemon reads it.
rh_result forcedAlgorithms(char out[RHW_FORCING]);
// configured: as in rh_comm_config. *out: 1 = on, 0 = off.
rh_result reproducible(uint32_t configured, uint32_t* out);
// This thread's CPU affinity mask; empty if the machine has more processors than the mask can hold.
void ownProcessors(uint64_t out[RHW_CPU_WORDS]);
// $RAILHEAD_FLIGHT_RECORD: whether operations are recorded.
rh_result flightRecord(bool* on);
// Refuses a $RAILHEAD_ISA that this processor or build does not support.
rh_result checkIsa();

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_SETTINGS_H_
