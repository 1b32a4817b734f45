#include "base/abi.h"

#include "base/error.h"

namespace railhead::client {

namespace {

rh_result checkHeader(const char* operation, const char* argument, const StructHeader& header, const StructKind& kind) {
  if (header.size < kind.version1 || header.size > kMaxStructSize) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: %s has struct_size %u; want %u..%u: begin with %s", operation, argument, header.size,
                kind.version1, kMaxStructSize, kind.initializer);
  }
  if (header.version == 0) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: %s has struct_version 0; versions begin with 1: begin with %s", operation, argument, kind.initializer);
  }
  return RH_OK;
}

rh_result readHeader(const char* operation, const char* argument, const void* given, const StructKind& kind, StructHeader* header) {
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: %s is NULL", operation, argument);
  memcpy(header, given, sizeof *header);
  return checkHeader(operation, argument, *header, kind);
}

// Between two offsets, of which the first is not 0; 0 = all are.
size_t firstNotZero(const unsigned char* bytes, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) {
    if (bytes[i] != 0) return i;
  }
  return 0;
}

}  // namespace

rh_result checkInput(const char* operation, const char* argument, const void* given, const StructKind& kind, size_t known) {
  StructHeader header;
  const rh_result result = readHeader(operation, argument, given, kind, &header);
  if (result != RH_OK) return result;
  const auto* bytes = static_cast<const unsigned char*>(given);
  size_t odd = 0;
  const size_t reservedEnd = kind.reserved + sizeof(uint32_t);
  if (kind.reserved != 0) odd = firstNotZero(bytes, kind.reserved, reservedEnd < header.size ? reservedEnd : header.size);
  if (odd == 0) odd = firstNotZero(bytes, known, header.size);
  if (odd == 0) return RH_OK;
  return fail(RH_ERR_INVALID_ARGUMENT, "%s: %s has struct_size %u and is not 0 at byte %zu, which this library, %d.%d.%d, does not know: it knows "
              "%zu bytes of the struct. Update librailhead, or leave the field 0", operation, argument, header.size, odd, RH_VERSION_MAJOR,
              RH_VERSION_MINOR, RH_VERSION_PATCH, known);
}

rh_result checkOutput(const char* operation, const char* argument, const void* given, const StructKind& kind) {
  StructHeader header;
  return readHeader(operation, argument, given, kind, &header);
}

}  // namespace railhead::client
