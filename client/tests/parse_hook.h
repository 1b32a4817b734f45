/* Lets Go tests feed bytes to the parser of the daemon's messages. Not part of the ABI. */
#ifndef RAILHEAD_CLIENT_PARSE_HOOK_H_
#define RAILHEAD_CLIENT_PARSE_HOOK_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL when the bytes are a message that a daemon may send, else what is wrong with them. */
const char *rh_parse_message(const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_PARSE_HOOK_H_ */
