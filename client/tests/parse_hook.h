/* The parser of the daemon's messages, for Go tests. Not part of the ABI. */
#ifndef RAILHEAD_CLIENT_PARSE_HOOK_H_
#define RAILHEAD_CLIENT_PARSE_HOOK_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL if the bytes are a valid message of a daemon, else the error. */
const char *rh_parse_message(const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_PARSE_HOOK_H_ */
