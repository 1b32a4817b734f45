#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

namespace railhead::client {

namespace {
thread_local char lastMessage[768];
}

rh_result fail(rh_result result, const char* format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(lastMessage, sizeof lastMessage, format, args);
  va_end(args);
  return result;
}

}  // namespace railhead::client

extern "C" const char* rh_last_error_message(void) { return railhead::client::lastMessage; }

extern "C" uint32_t rh_get_version(void) { return RH_VERSION_MAJOR * 10000 + RH_VERSION_MINOR * 100 + RH_VERSION_PATCH; }

extern "C" const char* rh_result_string(rh_result result) {
  switch (result) {
    case RH_OK: return "ok";
    case RH_ERR_INVALID_ARGUMENT: return "invalid_argument";
    case RH_ERR_INVALID_HANDLE: return "invalid_handle";
    case RH_ERR_UNSUPPORTED: return "unsupported";
    case RH_ERR_OUT_OF_MEMORY: return "out_of_memory";
    case RH_ERR_SYSTEM: return "system";
    case RH_ERR_NO_DAEMON: return "no_daemon";
    case RH_ERR_DAEMON_LOST: return "daemon_lost";
    case RH_ERR_VERSION_MISMATCH: return "version_mismatch";
    case RH_ERR_PERMISSION: return "permission";
    case RH_ERR_PROTOCOL: return "protocol";
    case RH_ERR_TIMEOUT: return "timeout";
    case RH_ERR_RANK_MISSING: return "rank_missing";
    case RH_ERR_WORLD_SIZE_MISMATCH: return "world_size_mismatch";
    case RH_ERR_TOKEN_MISMATCH: return "token_mismatch";
    case RH_ERR_RANK_TAKEN: return "rank_taken";
    case RH_ERR_GROUP_BUSY: return "group_busy";
    case RH_ERR_RANK_DEAD: return "rank_dead";
    case RH_ERR_ABORTED: return "aborted";
    case RH_ERR_DRAINING: return "draining";
    case RH_ERR_MISMATCH: return "mismatch";
    case RH_ERR_LIMIT: return "limit";
    case RH_ERR_BUSY: return "busy";
    case RH_ERR_STALE: return "stale";
    case RH_ERR_REFUSED: return "refused";
    case RH_ERR_EXPIRED: return "expired";
    case RH_ERR_CANCELLED: return "cancelled";
    case RH_ERR_PATH_LOST: return "path_lost";
    case RH_ERR_STALLED: return "stalled";
    case RH_ERR_NO_PEER: return "no_peer";
    case RH_ERR_NAME_TAKEN: return "name_taken";
  }
  return "unknown_result";
}
