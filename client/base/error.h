// The calling thread's last error.
#ifndef RAILHEAD_CLIENT_BASE_ERROR_H_
#define RAILHEAD_CLIENT_BASE_ERROR_H_

#include <stddef.h>
#include <stdint.h>

#include "railhead.h"

namespace railhead::client {

// Records why a call fails, printf-style, for rh_last_error_message, and returns result. Long messages are cut.
rh_result fail(rh_result result, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Room for any list of ranks.
constexpr size_t kRanksText = 192;

// Writes the ranks of mask as "2" or "2, 5 and 7"; three or more consecutive ranks as "2, 5-9 and 12".
void formatRanks(uint64_t mask, char* out, size_t size);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_ERROR_H_
