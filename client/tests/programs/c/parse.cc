// Reads packets from stdin, each preceded by its size in 4 little-endian bytes. Gives each to the parser of the daemon's messages, in an
// allocation of exactly its size, and prints a line for each: "accepted", or the error.
#include <stdint.h>

#include "check.h"
#include "parse_hook.h"

int main() {
  uint32_t size;
  while (fread(&size, sizeof size, 1, stdin) == 1) {
    char* bytes = static_cast<char*>(malloc(size));
    CHECK(size == 0 || fread(bytes, size, 1, stdin) == 1);
    const char* why = rh_parse_message(bytes, size);
    puts(why == nullptr ? "accepted" : why);
    free(bytes);
  }
  return 0;
}
