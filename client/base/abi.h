// Structs of railhead.h that pass between a caller and this library. The two may have been compiled with different versions of the
// header.
//
// A struct only grows, at its end. 0 in an added field means what the struct meant before the field existed. So the library accepts
// every size from that of version 1 up:
//  - Input: a field that the caller's struct lacks reads as 0. Bytes beyond this library's struct, and reserved bytes, must be 0;
//    otherwise the call is refused, because the caller asks for something that this library does not know.
//  - Output: the library writes nothing beyond the caller's size. Fields that it does not know keep the caller's values.
#ifndef RAILHEAD_CLIENT_ABI_H_
#define RAILHEAD_CLIENT_ABI_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "railhead.h"

namespace railhead::client {

// Upper bound of struct_size; a larger one is an uninitialised field.
constexpr uint32_t kMaxStructSize = 4096;

struct StructKind {
  const char* initializer;
  uint32_t version1;  // its size in version 1, which never changes
  size_t reserved;    // offset of the reserved 32-bit input field, which a caller's struct may lack; 0 = there is none
};

// Every struct of railhead.h. client/abi/railhead.abi records these sizes.
constexpr StructKind kindOf(const rh_session_config*) { return {"RH_SESSION_CONFIG_INIT", 24, offsetof(rh_session_config, reserved)}; }
constexpr StructKind kindOf(const rh_comm_config*) { return {"RH_COMM_CONFIG_INIT", 80, 0}; }
constexpr StructKind kindOf(const rh_comm_status*) { return {"RH_COMM_STATUS_INIT", 656, 0}; }
constexpr StructKind kindOf(const rh_comm_info*) { return {"RH_COMM_INFO_INIT", 48, 0}; }
constexpr StructKind kindOf(const rh_choice*) { return {"RH_CHOICE_INIT", 40, 0}; }
constexpr StructKind kindOf(const rh_register_config*) { return {"RH_REGISTER_CONFIG_INIT", 40, offsetof(rh_register_config, reserved)}; }
constexpr StructKind kindOf(const rh_window_config*) { return {"RH_WINDOW_CONFIG_INIT", 16, offsetof(rh_window_config, reserved)}; }
constexpr StructKind kindOf(const rh_window_info*) { return {"RH_WINDOW_INFO_INIT", 32, 0}; }
constexpr StructKind kindOf(const rh_window_sharing*) { return {"RH_WINDOW_SHARING_INIT", 272, 0}; }
constexpr StructKind kindOf(const rh_ep_config*) { return {"RH_EP_CONFIG_INIT", 80, offsetof(rh_ep_config, reserved)}; }
constexpr StructKind kindOf(const rh_ep_info*) { return {"RH_EP_INFO_INIT", 48, 0}; }
constexpr StructKind kindOf(const rh_ep_report*) { return {"RH_EP_REPORT_INIT", 352, 0}; }
constexpr StructKind kindOf(const rh_ep_dispatch_in*) { return {"RH_EP_DISPATCH_IN_INIT", 64, offsetof(rh_ep_dispatch_in, reserved)}; }
constexpr StructKind kindOf(const rh_ep_dispatch_out*) { return {"RH_EP_DISPATCH_OUT_INIT", 136, 0}; }
constexpr StructKind kindOf(const rh_ep_combine_args*) { return {"RH_EP_COMBINE_ARGS_INIT", 48, offsetof(rh_ep_combine_args, reserved)}; }

constexpr StructKind kindOf(const rh_kv_agent_config*) { return {"RH_KV_AGENT_CONFIG_INIT", 24, offsetof(rh_kv_agent_config, reserved)}; }
constexpr StructKind kindOf(const rh_kv_cache_config*) { return {"RH_KV_CACHE_CONFIG_INIT", 88, 0}; }
constexpr StructKind kindOf(const rh_kv_transfer*) { return {"RH_KV_TRANSFER_INIT", 104, 0}; }
constexpr StructKind kindOf(const rh_kv_notification*) { return {"RH_KV_NOTIFICATION_INIT", 96, 0}; }

struct StructHeader {
  uint32_t size;
  uint32_t version;
};

// Refuses a struct that is too small, too large, or without a version. known: the number of bytes that this library reads; all bytes
// after them must be 0. operation and argument name the struct in the message.
rh_result checkInput(const char* operation, const char* argument, const void* given, const StructKind& kind, size_t known);
// The same for an output struct: only its size and version are read.
rh_result checkOutput(const char* operation, const char* argument, const void* given, const StructKind& kind);

template <class S>
size_t commonBytes(const S* given) {
  static_assert(sizeof(S) >= kindOf(static_cast<const S*>(nullptr)).version1 && sizeof(S) <= kMaxStructSize, "a struct only grows");
  return given->struct_size < sizeof(S) ? given->struct_size : sizeof(S);
}

// Checks and copies an input struct.
template <class S>
rh_result readStruct(const char* operation, const char* argument, const S* given, S* out) {
  const rh_result result = checkInput(operation, argument, given, kindOf(given), sizeof(S));
  if (result != RH_OK) return result;
  *out = {};
  memcpy(out, given, commonBytes(given));
  return RH_OK;
}

// Checks an output struct; call it before the work that produces the output.
template <class S>
rh_result checkStruct(const char* operation, const char* argument, const S* given) {
  return checkOutput(operation, argument, given, kindOf(given));
}

// Writes an output struct that was checked or read before; keeps its size and version.
template <class S>
void writeStruct(S* given, const S& results) {
  constexpr size_t kHeader = sizeof(StructHeader);
  memcpy(reinterpret_cast<char*>(given) + kHeader, reinterpret_cast<const char*>(&results) + kHeader, commonBytes(given) - kHeader);
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_ABI_H_
