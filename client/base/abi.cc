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

}  // namespace

rh_result checkInput(const char* operation, const char* argument, const void* given, const StructKind& kind, size_t known) {
  StructHeader header;
  const rh_result result = readHeader(operation, argument, given, kind, &header);
  if (result != RH_OK) return result;
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (size_t i = known; i < header.size; i++) {
    if (bytes[i] == 0) continue;
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: %s has struct_size %u and is not 0 at byte %zu; this library, %d.%d.%d, knows %zu bytes of it. "
                "Update librailhead, or leave the field 0", operation, argument, header.size, i, RH_VERSION_MAJOR, RH_VERSION_MINOR,
                RH_VERSION_PATCH, known);
  }
  return RH_OK;
}

rh_result checkOutput(const char* operation, const char* argument, const void* given, const StructKind& kind) {
  StructHeader header;
  return readHeader(operation, argument, given, kind, &header);
}

}  // namespace railhead::client
