// The calling thread's last error.
#ifndef RAILHEAD_CLIENT_BASE_ERROR_H_
#define RAILHEAD_CLIENT_BASE_ERROR_H_

#include <stddef.h>
#include <stdint.h>

#include "railhead.h"

namespace railhead::client {

// Records why a call fails, printf-style, for rh_last_error_message, and returns result. Long messages are cut.
rh_result fail(rh_result result, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_ERROR_H_
