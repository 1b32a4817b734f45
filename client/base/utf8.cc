#include "base/utf8.h"

#include <stdint.h>

namespace railhead::client {

namespace {

// How many bytes follow a first byte, and the smallest code point that needs them; -1 = not a first byte.
int following(uint8_t first, uint32_t* smallest) {
  *smallest = first < 0xe0 ? 0x80 : first < 0xf0 ? 0x800 : 0x10000;
  if (first < 0x80) return 0;
  if (first < 0xc0 || first > 0xf7) return -1;
  return first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
}

}  // namespace

bool validUtf8(const char* s, size_t size) {
  for (size_t i = 0; i < size;) {
    const auto first = static_cast<uint8_t>(s[i++]);
    uint32_t smallest;
    const int more = following(first, &smallest);
    if (more < 0 || static_cast<size_t>(more) > size - i) return false;
    if (more == 0) continue;
    uint32_t point = first & (0x3fu >> more);
    for (int k = 0; k < more; k++) {
      const auto next = static_cast<uint8_t>(s[i++]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3fu);
    }
    if (point < smallest || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
  }
  return true;
}

}  // namespace railhead::client
