#include "parse_hook.h"

#include "session/message.h"

extern "C" const char* rh_parse_message(const void* bytes, size_t size) {
  railhead::client::Message out;
  return railhead::client::parseMessage(bytes, size, &out);
}
