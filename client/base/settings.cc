#include "base/settings.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "host/kernel_set.h"
#include "wire.h"

namespace railhead::client {

namespace {

constexpr uint32_t kDefaultTimeoutMs = 30000;

}  // namespace

const char* environment(const char* variable) {
  const char* value = getenv(variable);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

bool parseInt(const char* text, long low, long high, long* out) {
  char* end = nullptr;
  errno = 0;
  *out = strtol(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && *out >= low && *out <= high;
}

rh_result socketPath(const char* configured, char out[kMaxSocketPath + 1]) {
  if (configured == nullptr) configured = environment("RAILHEAD_SOCKET");
  int n;
  if (configured != nullptr) {
    n = snprintf(out, kMaxSocketPath + 1, "%s", configured);
  } else if (const char* runtime = environment("XDG_RUNTIME_DIR")) {
    n = snprintf(out, kMaxSocketPath + 1, "%s/railhead/railhead.sock", runtime);
  } else {
    n = snprintf(out, kMaxSocketPath + 1, "/run/railhead/railhead.sock");
  }
  if (n <= 0) return fail(RH_ERR_INVALID_ARGUMENT, "connect: the socket path is empty");
  if (static_cast<size_t>(n) > kMaxSocketPath) {
    return fail(RH_ERR_INVALID_ARGUMENT, "connect: the socket path has %d bytes, at most %zu fit: %.40s...", n,
                kMaxSocketPath, configured != nullptr ? configured : out);
  }
  return RH_OK;
}

rh_result timeoutMs(uint32_t configured, const char* operation, uint32_t* out) {
  *out = configured;
  if (configured != 0) return RH_OK;
  *out = kDefaultTimeoutMs;
  const char* text = environment("RAILHEAD_TIMEOUT_MS");
  if (text == nullptr) return RH_OK;
  long value;
  if (!parseInt(text, 1, 0x7fffffff, &value)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: RAILHEAD_TIMEOUT_MS=%.40s: expected milliseconds, 1 or more", operation, text);
  }
  *out = static_cast<uint32_t>(value);
  return RH_OK;
}

rh_result forcedAlgorithms(char out[RHW_FORCING]) {
  memset(out, 0, RHW_FORCING);
  const char* text = environment("RAILHEAD_ALGO");
  if (text == nullptr) return RH_OK;
  const size_t length = strlen(text);
  if (length >= RHW_FORCING) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: RAILHEAD_ALGO has %zu bytes, at most %u are allowed: %.40s...", length, RHW_FORCING - 1, text);
  }
  if (!validUtf8(text, length)) return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: RAILHEAD_ALGO is not UTF-8");
  memcpy(out, text, length);
  return RH_OK;
}

rh_result reproducible(uint32_t configured, uint32_t* out) {
  if (configured > RH_REPRODUCIBLE_OFF) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: reproducible is %u; 1 is on, 2 off, 0 leaves it to RAILHEAD_REPRODUCIBLE", configured);
  }
  *out = configured != RH_REPRODUCIBLE_OFF;
  const char* text = environment("RAILHEAD_REPRODUCIBLE");
  if (configured != 0 || text == nullptr) return RH_OK;
  *out = strcmp(text, "on") == 0;
  if (*out || strcmp(text, "off") == 0) return RH_OK;
  return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: RAILHEAD_REPRODUCIBLE=%.40s: expected on or off", text);
}

void ownProcessors(uint64_t out[RHW_CPU_WORDS]) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  static_assert(sizeof set == RHW_CPU_WORDS * sizeof out[0], "the C library's mask");
  memcpy(out, &set, sizeof set);
}

rh_result flightRecord(bool* on) {
  *on = true;
  const char* text = environment("RAILHEAD_FLIGHT_RECORD");
  if (text == nullptr || strcmp(text, "on") == 0) return RH_OK;
  *on = false;
  if (strcmp(text, "off") == 0) return RH_OK;
  return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: RAILHEAD_FLIGHT_RECORD=%.40s: expected on or off", text);
}

rh_result checkIsa() {
  const char* isa = environment("RAILHEAD_ISA");
  if (isa == nullptr || host::kernelsFor(isa) != nullptr) return RH_OK;
  return fail(RH_ERR_UNSUPPORTED, "comm_init: RAILHEAD_ISA=%.40s: this processor has portable%s%s; unset it for the best", isa,
              host::kernelsFor("avx2") != nullptr ? ", avx2" : "", host::kernelsFor("avx512") != nullptr ? ", avx512" : "");
}

}  // namespace railhead::client
