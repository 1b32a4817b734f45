// UTF-8 as Go's unicode/utf8 defines it, so that the client and the daemon accept the same names and texts.
#ifndef RAILHEAD_CLIENT_BASE_UTF8_H_
#define RAILHEAD_CLIENT_BASE_UTF8_H_

#include <stddef.h>

namespace railhead::client {

// Shortest forms only, no surrogates, nothing above U+10FFFF.
bool validUtf8(const char* s, size_t size);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_UTF8_H_
